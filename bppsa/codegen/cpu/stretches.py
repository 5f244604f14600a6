"""Stretches of steps by built kernels: each thread takes its rows one after the other, so that what it computes again
of a row stays in its own cache. See skeleton/stretches.h; a library for each element type serves all kernels."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.cpu import build
from bppsa.codegen.cpu.entries import address
from bppsa.codegen.cpu.native import INT, POINTER, NativeKernel
from bppsa.codegen.cpu.print_cpp import BYTES, skeleton
from bppsa.codegen.language.ir import Kind
from bppsa.codegen.language.stretches import StretchWork

WHOLE, ROWS, STEPS, HELD, SUM = range(5)  # as skeleton/stretches.h has them
REACH = {Kind.STREAM: STEPS, Kind.STATE: STEPS, Kind.RUNNING: ROWS, Kind.COLUMN_SUM: SUM}
LINE = 64  # bytes


@functools.cache
def source(real: str) -> str:
    """`real` is "float" or "double"."""
    return "\n".join([f"using real = {real};", *map(skeleton, ("vec.h", "intrinsics.h", "arena.h", "stretches.h"))])


class NativeStretches:
    """Called as `language.stretches.run` is. `allocate`: (count, type) -> work memory, [count]."""

    def __init__(self, real: str, allocate: Callable[[int, torch.dtype], Tensor]) -> None:
        self.size, self.allocate = BYTES[real], allocate
        self._run: Any = build.library(source(real)).bppsa_stretches
        self._run.argtypes, self._run.restype = (POINTER, POINTER, INT), None

    def __call__(self, work: StretchWork, runners: Sequence[NativeKernel]) -> None:
        stretches = work.stretches
        threads = min(stretches.rows, *(runner.threads_by_rows(stretches.steps, stretches.rows) for runner in runners))
        multiplies = any(group.dots for kernel in work.kernels for group in kernel.groups)
        block = -(-stretches.rows // threads) if multiplies else 1  # who multiplies packs weights for all of its rows
        words = CallWords(work, runners, block, self.size)
        memory = self.allocate(words.used * threads + LINE, torch.uint8)
        at = memory.data_ptr()
        self._run(words.address, at + -at % LINE, threads)


class CallWords:
    """What the native call reads, as int64 words, and a thread's memory laid out."""

    def __init__(self, work: StretchWork, runners: Sequence[NativeKernel], block: int, size: int) -> None:
        self.work, self.block, self.used = work, block, 0
        self.arrays: list[array[int]] = []  # kept as long as this
        stretches, buffers = work.stretches, work.buffers()
        self.places = {
            name: self.take((stretches.length + 1) * block * buffers[name].width * size) for name in work.held
        }
        sums: list[int] = []
        for name, buffer in buffers.items():
            if buffer.kind is Kind.COLUMN_SUM:
                self.places[name] = self.take(buffer.width * size)
                total = self.take(buffer.width * BYTES["double"])
                sums += [work.tensors[name].data_ptr(), buffer.width, self.places[name], total]
        stages = [word for runner in runners for word in self.stage(runner)]
        first = [b.name for b in work.kernels[0].arguments]
        kept: list[int] = []
        for name, states in work.kept.items():
            is_state = buffers[name].kind is Kind.STATE
            kept += [states.data_ptr(), buffers[name].width, first.index(name), is_state]
        pointers = self.take(BYTES["double"] * max(len(kernel.arguments) for kernel in work.kernels))
        self.address = self.words(
            *map(self.words, (stages, kept, sums)),
            *(len(runners), len(work.kept), len(sums) // 4),
            *(stretches.steps, stretches.rows, stretches.length, block, stretches.reverse, stretches.along),
            *(pointers, self.used),
        )

    def take(self, count: int) -> int:
        """Bytes of each thread's memory, by where they begin."""
        at = self.used
        self.used += -(-count // LINE) * LINE
        return at

    def words(self, *numbers: int | list[int]) -> int:
        """Their address."""
        flat = [n for number in numbers for n in (number if isinstance(number, list) else (number,))]
        self.arrays.append(array("q", flat))
        return self.arrays[-1].buffer_info()[0]

    def stage(self, runner: NativeKernel) -> list[int]:
        at, first, second, reach = [], [], [], []
        for buffer in runner.kernel.arguments:
            held = buffer.name in self.work.held
            if held:
                strides: Sequence[int] = (self.block * buffer.width, buffer.width)
            else:
                strides = self.work.tensors[buffer.name].stride()
            own = self.places.get(buffer.name)
            at.append(self.work.tensors[buffer.name].data_ptr() if own is None else own)
            first.append(strides[0])
            second.append(strides[1] if len(strides) > 1 else 0)
            reach.append(HELD if held else REACH.get(buffer.kind, WHOLE))
        tables = [self.words(table) for table in (at, first, second, reach)]
        workspace = self.take(runner.workspace_bytes(self.block, 1))
        function, dims = runner.entry
        return [function, address(dims), len(at), *tables, workspace]
