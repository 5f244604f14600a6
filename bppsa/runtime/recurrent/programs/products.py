"""Products over all rows of a sweep as calls of a program: before it of x, after it of cotangents."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from bppsa.codegen.cpu import calls
from bppsa.codegen.cpu.entries import address
from bppsa.codegen.cpu.native import NS_PER_PRODUCT, threads_sharing
from bppsa.codegen.cpu.products import LEAST_NS
from bppsa.codegen.lowering.lower import ColumnRun
from bppsa.runtime.programs.program import Place, Writer
from bppsa.runtime.recurrent.programs.strided import Strided

Word = Place | int


def longest(outers: Sequence[Sequence[ColumnRun]], projections: Sequence[Sequence[ColumnRun]]) -> int:
    """How many words the longest product takes, by the runs of each."""
    return max([13 + 2 * len(runs) for runs in outers] + [8 + 5 * len(runs) for runs in projections], default=0)


def outer(
    to: Writer, rows: int, left: Strided, depth: int, right: Strided, runs: Sequence[ColumnRun], out: Strided
) -> None:
    """out = left^T right, as `codegen.cpu.products.OuterProduct` says it. depth: columns of left."""
    of_left = (left.place, left.second, 1, 0, depth)
    of_right: tuple[Word, ...] = (right.place, right.second, len(runs))
    for run in runs:
        of_right += (run.column, run.width)
    words: tuple[Word, ...] = (1, 0, *of_left, *of_right, out.place, out.first, out.second)
    _multiply(to, rows, depth * sum(run.width for run in runs), words)


def projection(
    to: Writer, rows: int, left: Strided, weight: Strided, runs: Sequence[ColumnRun], out: Strided, width: int
) -> None:
    """out = left @ weight, as `codegen.cpu.products.Projection` says it. width: columns of out."""
    pieces: list[Word] = []
    for run in runs:
        pieces += (run.column, run.width, weight.past(to, run.start * weight.first).place, *weight.strides)
    words: tuple[Word, ...] = (0, 1, left.place, left.second, len(runs), *pieces, out.place, out.second, width)
    _multiply(to, rows, width * sum(run.width for run in runs), words)


def _multiply(to: Writer, rows: int, products: int, words: Sequence[Word]) -> None:
    """products: of a row."""
    threads = threads_sharing(rows * products * NS_PER_PRODUCT, LEAST_NS)
    sizes = array("q", [0 if isinstance(word, Place) else word for word in words])  # reads no address
    size = calls.products_workspace(to.dtype)(address(sizes), rows, threads)
    workspace = to.take_bytes(size)
    to.call(calls.multiply(to.dtype, len(words)), rows, threads, workspace, *words)
    to.free(workspace)
