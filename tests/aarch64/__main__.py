"""Try kernels on 64-bit ARM, under an emulator: `make aarch64`.

    BPPSA_ISA=armv8-a python -m tests.aarch64                  all of them: minutes the first time, while they are built
    BPPSA_ISA=armv8-a python -m tests.aarch64 GRU products     those whose names begin so

Exits with 1 where one differs. Where the compiler or the emulator is missing it says so, and exits with 0.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from bppsa.codegen import isa
from tests.aarch64.emulated import LEVEL, missing
from tests.aarch64.trials import TOLERANCE, Trial, trials


def main(names: list[str]) -> int:
    if reason := missing():
        print(f"skipped: {reason}")
        return 0
    assert isa.chosen().name == LEVEL, f"start it with {isa.VARIABLE}={LEVEL}: printers ask for the processor"
    wanted = [trial for trial in trials() if trial.name.startswith(tuple(names) or "")]
    assert wanted, f"no kernel's name begins with {' or '.join(names)}"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        fine = [pool.submit(tried, trial, real) for trial in wanted for real in TOLERANCE]
        return int(not all([done.result() for done in fine]))


def tried(trial: Trial, real: str) -> bool:
    """Whether its results are those of the interpreter; prints a line."""
    worst, fine = trial.differs(real)
    print(f"{trial.name}, {real}: differs by {worst:.0e}{'' if fine else ': TOO MUCH'}", flush=True)
    return fine


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
