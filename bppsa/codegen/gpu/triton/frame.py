"""What all printers of Triton share: how a buffer is passed, and what a printed kernel is."""

from __future__ import annotations

from dataclasses import dataclass

from bppsa.codegen.gpu.triton.columns import Block
from bppsa.codegen.language.ir import Kind

BYTES = {"float": 4, "double": 8}
TYPES = {"float": "tl.float32", "double": "tl.float64"}

# The arguments of each kind of buffer: its address, then strides in elements.
STRIDES = {
    Kind.STREAM: ("t", "b"),
    Kind.STATE: ("c", "t", "b"),
    Kind.RUNNING: ("c", "b"),
    Kind.VECTOR: (),
    Kind.WEIGHT: ("k", "n"),
    Kind.COLUMN_SUM: (),  # contiguous: one row of partial sums a program
}
# The text before a kernel's body: what it imports, and the arguments after those of its buffers.
HEAD = """\
# Printed by bppsa: {name}.
import triton
import triton.language as tl

from bppsa.codegen.gpu.triton.functions import arc_tangent, error_function, exponent, exponential
from bppsa.codegen.gpu.triton.functions import hyperbolic_tangent, largest, maximum, minimum, moved
from bppsa.codegen.gpu.triton.functions import remainder_of, sigmoid, sine, times_power_of_two


@triton.jit
def sweep({parameters}, lengths, steps, rows, columns, chunk, direction, reverse, PRECISION: tl.constexpr):
    REAL: tl.constexpr = {real}
"""


@dataclass(frozen=True)
class PrintedTriton:  # shares its name: a kernel as text, what the printer of any language returns
    """source: a Python module with the function `sweep`. warps: for how many it is meant; block: a program's rows.
    scratch: elements of memory that each program is given after all buffers. units: programs for each block."""

    source: str
    warps: int
    block: Block
    scratch: int = 0
    units: int = 1
