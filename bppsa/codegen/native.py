"""Call a printed and built kernel on tensors: addresses and strides in, no copies, no allocation but the workspace.

Several Python threads may call one `NativeKernel`: a call keeps its state to itself, and ctypes releases the GIL.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bppsa.codegen import build, print_cpp
from bppsa.codegen.hazards import splittable
from bppsa.codegen.ir import Kernel, Kind

REAL = {torch.float32: "float", torch.float64: "double"}
# (time stride, row stride) as the C entry point takes them; of a WEIGHT: (stride of k, stride of columns)
STRIDES: dict[Kind, Callable[[tuple[int, ...]], tuple[int, int]]] = {
    Kind.STREAM: lambda s: (s[0], s[1]),
    Kind.STATE: lambda s: (s[0], s[1]),
    Kind.WEIGHT: lambda s: (s[0], s[1]),
    Kind.RUNNING: lambda s: (0, s[0]),
    Kind.VECTOR: lambda s: (0, 0),
    Kind.COLUMN_SUM: lambda s: (0, 0),
}
# Rough costs on one thread, only used to choose how many threads work on what.
NS_PER_PRODUCT = 0.03
NS_PER_POINT = 1.5
LEAST_NS = 15_000  # of a call's work for each thread
LEAST_STEP_NS = 200  # of a step's work for each thread where all must meet in every step

_forked = False


def _forget_threads() -> None:
    """A forked child has none of its parent's OpenMP threads, and waking them would hang: it computes on its own."""
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


class NativeKernel:
    """`kernel` as machine code for elements of `real`, "float" or "double". Called as `interpret.run` is."""

    def __init__(self, kernel: Kernel, real: str) -> None:
        self.kernel, self.real = kernel, real
        library = build.library(print_cpp.source(kernel, real))
        self._dims = array("q", print_cpp.dims(kernel))
        self._dims_at = self._dims.buffer_info()[0]
        self._kinds = tuple(b.kind for b in kernel.arguments)
        self._row_ns = sum(
            group.width * (NS_PER_POINT + NS_PER_PRODUCT * sum(kernel.buffer(d.weight).depth for d in group.dots))
            for group in kernel.groups
        )
        self._splittable = splittable(kernel)
        self._sweep = library.bppsa_sweep
        self._sweep.restype = None
        self._sweep.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 2 + [ctypes.c_void_p] + [ctypes.c_int] * 3 + [ctypes.c_void_p]
        self._workspace = library.bppsa_workspace
        self._workspace.restype = ctypes.c_int64
        self._workspace.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]

    def threads(self, steps: int, rows: int) -> int:
        """How many threads a call of this size gets."""
        if _forked:
            return 1
        most = min(torch.get_num_threads(), int(steps * rows * self._row_ns / LEAST_NS))
        if rows < most:
            most = max(rows, min(most, int(rows * self._row_ns / LEAST_STEP_NS)) if self._splittable else rows)
        return max(1, most)

    def splits_columns(self, rows: int, threads: int) -> bool:
        """Whether threads share the columns, not the rows: so few rows a thread would wait for the weights. They meet every step."""
        return self._splittable and 0 < rows <= threads and rows * self._row_ns >= threads * LEAST_STEP_NS

    def workspace_bytes(self, rows: int, threads: int) -> int:
        return self._workspace(self._dims_at, rows, threads)

    def __call__(
        self,
        tensors: Sequence[Tensor],
        *,
        steps: int,
        rows: int,
        active: Tensor | None = None,
        reverse: bool = False,
        threads: int | None = None,
        workspace: Tensor | None = None,
    ) -> None:
        """Run in place on `tensors`, one for each of `kernel.arguments`, all of dtype `real`, last dimension contiguous (a
        WEIGHT: any strides). active: int64 [T]. workspace: uint8, at least `workspace_bytes(rows, threads)`."""
        if threads is None:
            threads = self.threads(steps, rows)
        if workspace is None:
            workspace = torch.empty(self._workspace(self._dims_at, rows, threads), dtype=torch.uint8)
        pointers, time_strides, row_strides = [], [], []
        for kind, tensor in zip(self._kinds, tensors, strict=True):
            pointers.append(tensor.data_ptr())
            strides = tensor.stride()
            first, second = STRIDES[kind](strides)
            time_strides.append(first)
            row_strides.append(second)
        count = len(pointers)
        table = array("q", pointers + time_strides + row_strides)
        at = table.buffer_info()[0]
        self._sweep(
            at, at + 8 * count, at + 16 * count, self._dims_at, steps, rows,
            None if active is None else active.data_ptr(), reverse, threads, self.splits_columns(rows, threads),
            workspace.data_ptr(),
        )  # fmt: skip

