"""The experiments of the BPPSA paper, measured and drawn again: `make figures`, or `python -m figures` from the root.

What times, names the machine and writes JSON is that of `benchmarks/`, whose modules are found by their short names.
"""

import sys
from pathlib import Path

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")
if BENCHMARKS not in sys.path:
    sys.path.append(BENCHMARKS)
