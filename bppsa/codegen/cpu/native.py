"""Call a printed and built kernel on tensors: addresses and strides in, no copies, no allocation but the workspace.

Several Python threads may call one `NativeKernel`: a call keeps its state to itself, and ctypes releases the GIL.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa.codegen.cpu import build
from bppsa.codegen.cpu.print_cpp import printed
from bppsa.codegen.language.ir import Kernel
from bppsa.common.process.forks import in_children

REAL = {torch.float32: "float", torch.float64: "double"}
# Rough costs on one thread, only used to choose how many threads work on what.
NS_PER_PRODUCT = 0.03
NS_PER_POINT = 1.5
LEAST_NS = 15_000  # of a call's work for each thread
MOST_SIZES = 256  # of workspaces that are remembered
LEAST_STEP_NS = 1_050  # of a step's work for each thread where all must meet in every step

CPU = torch.device("cpu")
POINTER, INT64, INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
SWEEP = (POINTER, POINTER, POINTER, POINTER, INT64, INT64, INT64, POINTER, INT, INT, INT, POINTER)

_forked = False


@in_children
def _forget_threads() -> None:
    """A forked child has none of its parent's OpenMP threads, and waking them would hang: it computes on its own."""
    global _forked
    _forked = True


def available_threads() -> int:
    return 1 if _forked else torch.get_num_threads()


def threads_sharing(work: float, least: float) -> int:
    """As many threads as get at least so much of the work each."""
    return max(1, min(available_threads(), int(work / least)))


class NativeKernel:
    """`kernel` as machine code for elements of `real`, "float" or "double". Called as `interpret.run` is."""

    def __init__(self, kernel: Kernel, real: str) -> None:
        text = printed(kernel, real)
        library = build.library(text.source)
        self.kernel = kernel
        self._count = len(kernel.arguments)
        self._shares = text.shares
        self._row_ns = sum(
            group.width * (NS_PER_POINT + NS_PER_PRODUCT * sum(kernel.buffer(d.weight).depth for d in group.dots))
            for group in kernel.groups
        )
        self._dims = array("q", text.dims)
        self._dims_at = self._dims.buffer_info()[0]
        self._sweep = library.bppsa_sweep
        self._sweep.argtypes, self._sweep.restype = SWEEP, None
        self._workspace = library.bppsa_workspace
        self._workspace.argtypes, self._workspace.restype = (POINTER, INT64, INT), INT64
        self._bytes: dict[tuple[int, int], int] = {}  # of a workspace, by rows and threads

    def threads(self, steps: int, rows: int) -> int:
        """How many threads a call of this size gets."""
        most = min(available_threads(), int(steps * rows * self._row_ns / LEAST_NS))
        by_columns = min(most, self._shares, int(rows * self._row_ns / LEAST_STEP_NS))
        return max(1, min(most, rows), by_columns)

    def threads_by_rows(self, steps: int, rows: int) -> int:
        """As many threads as have work enough where each has rows of its own."""
        return threads_sharing(steps * rows * self._row_ns, LEAST_NS)

    @property
    def entry(self) -> tuple[int, array[int]]:
        """The address of the function that the skeleton's `bppsa_sweep` is, and the numbers it is given."""
        return ctypes.cast(self._sweep, ctypes.c_void_p).value or 0, self._dims

    def splits_columns(self, rows: int, threads: int) -> bool:
        """Whether threads share the columns and meet in every step: each with so few rows would wait for weights."""
        return rows <= threads <= self._shares and rows * self._row_ns >= threads * LEAST_STEP_NS

    def workspace_bytes(self, rows: int, threads: int) -> int:
        size = self._bytes.get((rows, threads))
        if size is None:
            size = self._workspace(self._dims_at, rows, threads)
            if len(self._bytes) < MOST_SIZES:
                self._bytes[rows, threads] = size
        return size

    def __call__(
        self,
        tensors: Sequence[Tensor],
        *,
        steps: int,
        rows: int,
        active: Tensor | None = None,
        reverse: bool = False,
        columns: int = 1,
        threads: int | None = None,
        workspace: Tensor | None = None,
    ) -> None:
        """Run in place on `tensors`, one for each of `kernel.arguments`, all of type `real` and with the last dimension
        contiguous; a WEIGHT may have any strides. active: int64 [T], contiguous. workspace: uint8, with at least
        `workspace_bytes(rows, threads)`."""
        if len(tensors) != self._count:
            raise ValueError(f"kernel {self.kernel.name} takes {self._count} tensors, not {len(tensors)}")
        rows *= columns  # of what is carried along
        if threads is None or _forked:
            threads = self.threads(steps, rows) if columns == 1 else min(available_threads(), rows // columns)
        if workspace is None:
            at_once = rows if columns == 1 else threads * columns
            workspace = torch.empty(self.workspace_bytes(at_once, threads), dtype=torch.uint8, device=CPU)
        strides = [tensor.stride() for tensor in tensors]
        table = array("q", [tensor.data_ptr() for tensor in tensors])
        table.extend([s[0] for s in strides])
        table.extend([s[1] if len(s) > 1 else 0 for s in strides])
        pointers, row = table.buffer_info()[0], 8 * self._count
        split = columns == 1 and self.splits_columns(rows, threads)
        active_at = None if active is None else active.data_ptr()
        where = (pointers, pointers + row, pointers + 2 * row, self._dims_at)
        self._sweep(*where, steps, rows, columns, active_at, reverse, threads, split, workspace.data_ptr())
