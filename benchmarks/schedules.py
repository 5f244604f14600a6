"""Schedules that run on two ranks of this machine, one thread each: beside their simulation, and beside PyTorch.

    python benchmarks/schedules.py                       everything, some twenty minutes; nothing else should run
    python benchmarks/schedules.py --only pipelines      some parts; the others stay as they were in the file
    python benchmarks/schedules.py --only schedules --schedules gpipe,ddp       the same for some rows of a part
    python benchmarks/schedules.py --quick               sizes of nothing: only shows that all of it runs
    python benchmarks/schedules.py --show                measures nothing: prints what is kept

Results are kept in benchmarks/results/, a file for each machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import schedules_many
import schedules_waves
from harness.command import Command, run
from harness.comparison import Options, Row
from harness.parts import Part, names_of
from rows import schedules_threads
from rows.schedules_cases import CASES, LARGE, RANKS, SMALL, TINY, Case, Size

HERE = Path(__file__).parent
# glibc keeps what is freed, for both sides: fresh pages cost a virtual machine more than the work in them.
KEEPING = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(32 << 30)}
Measured = tuple[Case, Size]


def schedule_cases(options: Options) -> list[Measured]:
    return [(case, TINY if options.quick else LARGE) for case in CASES[:: 6 if options.quick else 1]]


def schedules(case: Measured, options: Options) -> list[Row]:
    return [on_ranks("predictions", *case, options.repeats)]


def pipeline_cases(options: Options) -> list[Measured]:
    cases = [case for case in CASES if case.peer is not None]
    if options.quick:
        return [(case, TINY) for case in cases if case.peer in ("1F1B", "ZBV", "DDP")]
    return [(case, size) for size in (LARGE, SMALL) for case in cases]


def pipelines(case: Measured, options: Options) -> list[Row]:
    return [on_ranks("peers", *case, options.repeats * case[1].samples)]


def on_ranks(measurement: str, case: Case, size: Size, repeats: int) -> Row:
    """What rank 0 of new processes prints. Raises SystemExit with what ranks that failed had to say."""
    arguments = json.dumps({"case": asdict(case), "size": asdict(size), "repeats": repeats})
    env = os.environ | KEEPING | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = []
        for rank in range(RANKS):
            command = [str(HERE / "schedules_rank.py"), str(rank), str(folder / "store"), measurement, arguments]
            with open(folder / f"out {rank}", "w") as out, open(folder / f"errors {rank}", "w") as errors:
                ranks.append(subprocess.Popen([sys.executable, *command], env=env, stdout=out, stderr=errors))
        if failed := failures(ranks):
            said = "\n".join((folder / f"errors {rank}").read_text() for rank in failed)
            raise SystemExit(f"{measurement} of {case}: {said}")
        found: dict[str, Any] = json.loads((folder / "out 0").read_text())
    return {"schedule": case.schedule, "S": case.S, "B": case.B, "peer": case.peer, "jobs": size.name, **found}


def failures(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Those that failed, once all have ended: where one fails the others are killed, as they would wait for it."""
    try:
        while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
            time.sleep(0.2)
        return [rank for rank, code in enumerate(codes) if code]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


PARTS = {
    "schedules": Part(schedule_cases, schedules),
    "pipelines": Part(pipeline_cases, pipelines),
    "workers": Part(schedules_threads.cases, schedules_threads.measure),
    "waves": Part(schedules_waves.cases, schedules_waves.measure),
    "many": Part(schedules_many.cases, schedules_many.measure),
}


def chosen(part: Part, schedules: list[str] | None) -> Part:
    """The part, or its rows of these schedules."""

    def cases(options: Options) -> list[Any]:
        return [case for case in part.cases(options) if schedules is None or case[0].schedule in schedules]

    return Part(cases, part.measure)


def merged(before: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs, in which what was measured again stands once."""

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in ("schedule", "S", "B", "W", "jobs", "way"))

    again = {key(row) for run in new for row in run["rows"]}
    kept = [{**run, "rows": [row for row in run["rows"] if key(row) not in again]} for run in before]
    return [*(run for run in kept if run["rows"]), *new]


def main() -> None:
    command = Command(__doc__, (7, 2), 2).shows()
    command.add_argument("--only", type=names_of(PARTS), default=list(PARTS), help=f"parts: {', '.join(PARTS)}")
    command.add_argument("--schedules", type=lambda text: text.split(","), help="rows of these only, with commas")
    arguments = command.given()
    run(arguments, {part: chosen(PARTS[part], arguments.schedules) for part in arguments.only}, merged)


if __name__ == "__main__":
    main()
