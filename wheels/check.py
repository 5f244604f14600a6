"""Install the newest wheel of a folder into an environment of its own, and train there: no compiler on PATH, and a home
that takes no files.

    python wheels/check.py dist [words for pip, such as --extra-index-url=...]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACE = ROOT / "build" / "check"
LEVELS = ("auto", "x86-64-v3")  # that are tried; every machine with AVX-512 runs both, and others the same twice
NO_HOME = "/proc"  # nobody can make a file there, nor can root
TYPED = """
import bppsa
from torch import nn

model: nn.Module = bppsa.compile(nn.GRU(2, 3))
report: bppsa.Report | None = bppsa.report(model)
wrong: int = bppsa.explain(model)
"""


def main(folder: str, *pip: str) -> None:
    wheel = max(Path(folder).glob("*.whl"), key=lambda path: path.stat().st_mtime)
    shutil.rmtree(PLACE, ignore_errors=True)
    venv.create(PLACE, with_pip=True)
    python = str(PLACE / "bin" / "python")
    constraints = str(ROOT / "constraints.txt")
    words = ["-m", "pip", "install", "--quiet", "--constraint", constraints, *pip, str(wheel), "mypy"]
    subprocess.run([python, *words], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        steps = shutil.copy(ROOT / "wheels" / "steps.py", scratch)  # away from the checkout's bppsa
        Path(scratch, "bin").mkdir()
        kept = {name: value for name, value in os.environ.items() if name in ("LANG", "OMP_NUM_THREADS")}
        environment = {**kept, "PATH": str(Path(scratch, "bin")), "HOME": NO_HOME, "TMPDIR": scratch}
        for level in LEVELS:
            print(f"BPPSA_ISA={level}", flush=True)
            command = [python, "-W", "ignore::UserWarning", str(steps)]  # PyTorch's own
            subprocess.run(command, check=True, cwd=scratch, env={**environment, "BPPSA_ISA": level})
        typed = Path(scratch, "typed.py")
        typed.write_text(TYPED)
        check_types(python, typed)


def check_types(python: str, typed: Path) -> None:
    """mypy reads our annotations from outside: it finds the one wrong line, and no other."""
    command = [python, "-m", "mypy", "--strict", "--cache-dir", os.devnull, typed.name]
    told = subprocess.run(command, cwd=typed.parent, capture_output=True, text=True).stdout
    wrong = [line for line in told.splitlines() if ": error:" in line]
    if len(wrong) != 1 or 'variable has type "int"' not in wrong[0]:
        sys.exit(f"mypy does not read the installed package's types:\n{told}")
    print("mypy --strict reads the installed package's types")


if __name__ == "__main__":
    main(*sys.argv[1:])
