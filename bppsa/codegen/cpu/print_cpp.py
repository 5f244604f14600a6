"""Print a kernel as one C++ translation unit: the hand-written skeleton around this kernel's derived expressions.

Every width, column and depth is a run-time number, so kernels of one structure share one text and one library. The unit
exports `bppsa_sweep` and `bppsa_workspace` (skeleton/driver.h); `native.py` calls them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

from bppsa.codegen.arrange.barriers import barriers, splittable
from bppsa.codegen.arrange.hazards import staged
from bppsa.codegen.arrange.tile import Tiling, tile
from bppsa.codegen.cpu.print_axes import AxesText
from bppsa.codegen.cpu.print_group import GroupText, by_source
from bppsa.codegen.cpu.print_point import CPP, RuntimeNumbers, body
from bppsa.codegen.language.expr import SPECIAL
from bppsa.codegen.language.ir import Kernel, Kind

__all__ = ["CPP", "Printed", "dims", "printed", "skeleton", "source"]

BYTES = {"float": 4, "double": 8}
SKELETON = Path(__file__).parent / "skeleton"


@dataclass(frozen=True)
class Printed:
    """source: the whole translation unit. dims: the run-time numbers it refers to; a non-integer by its double's bits.
    shares: into how many parts the columns of a step can be cut, for as many threads."""

    source: str
    dims: tuple[int, ...]
    shares: int


def source(kernel: Kernel, real: str) -> str:
    return printed(kernel, real).source


def dims(kernel: Kernel) -> list[int]:
    return list(printed(kernel, "float").dims)


@functools.lru_cache(maxsize=256)
def printed(kernel: Kernel, real: str) -> Printed:
    """`real` is "float" or "double"."""
    unit = _Unit(staged(kernel), BYTES[real])
    members = [*unit.head(), *unit.place(), *unit.pack(), *unit.bind(), *unit.hold(), *unit.step(), *unit.reduce()]
    struct = ["namespace {", *body("struct Kernel", members)[:-1], "};", "}  // namespace"]
    axes = ("axes.h",) * any(group.shape for group in kernel.groups)
    found = {node.op for group in kernel.groups for node in group.nodes()}
    own = (*("special.h",) * bool(found & SPECIAL), *("rounded.h",) * unit.numbers.exact)
    parts = map(skeleton, ("vec.h", "intrinsics.h", "math.h", *own, "gemm.h", "arena.h", "sweep.h", *axes))
    text = "\n".join([f"using real = {real};", *parts, *struct, skeleton("driver.h")])
    shares = max((g.blocks for g in unit.groups if g.panels), default=1) if splittable(kernel) else 1
    return Printed(text, tuple(unit.numbers.dims), shares)


@functools.cache
def skeleton(name: str) -> str:
    return (SKELETON / name).read_text()


class _Unit:
    """The members of `struct Kernel` that concern all groups."""

    def __init__(self, kernel: Kernel, size: int) -> None:
        self.kernel = kernel
        self.numbers = RuntimeNumbers(kernel)
        self.argument = {b.name: i for i, b in enumerate(kernel.arguments)}
        self.scratch = [b.name for b in kernel.buffers if b.kind is Kind.SCRATCH]
        self.sums = [b.name for b in kernel.buffers if b.kind is Kind.COLUMN_SUM]
        stored = [b for b in kernel.buffers if b.kind in (Kind.SCRATCH, Kind.COLUMN_SUM)]
        self.width = {b.name: self.numbers.number(b.width) for b in stored}
        sources = [by_source(kernel, group) for group in kernel.groups]
        tiles = _tiles(kernel, [tuple(map(len, s.values())) for s in sources], size)
        self.groups: list[GroupText | AxesText] = [
            AxesText(self.numbers, i, group, size, self.sums)
            if group.shape
            else GroupText(self.numbers, i, group, sources[i], tiles[i], self.argument, self.sums)
            for i, group in enumerate(kernel.groups)
        ]

    def head(self) -> list[str]:
        pointers = [panel for group in self.groups for panel in group.panels]
        pointers += [f"scratch{i}" for i in range(len(self.scratch))]
        return [
            f"static constexpr bool ALONG = {str(self.kernel.along).lower()};",
            f"static constexpr int SLOTS = {len(self.numbers.slots)}, SUMS = {len(self.sums)};",
            "struct Thread { Cursor<SLOTS> cursor; std::array<ColumnSum, SUMS> sums; };",
            "const int64_t* dims;",
            "Barrier* barrier;",
            "std::array<ColumnSum, SUMS> sums;",
            *(f"real* {name};" for name in pointers),
            "Kernel(const int64_t* dims, Barrier* barrier) : dims(dims), barrier(barrier) {}",
            *(line for group in self.groups for line in group.members),
        ]

    def place(self) -> list[str]:
        """Lay out the workspace."""
        panels = [line for group in self.groups for line in group.place]
        widths = [self.width[name] for name in self.scratch]
        scratch = [f"scratch{i} = arena.take<real>(rows * padded({width}));" for i, width in enumerate(widths)]
        sums = [f"sums[{i}].place(arena, {self.width[name]}, threads);" for i, name in enumerate(self.sums)]
        head = "void place(Arena& arena, [[maybe_unused]] int64_t rows, [[maybe_unused]] int threads)"
        return body(head, [*panels, *scratch, *sums])

    def pack(self) -> list[str]:
        head = "void pack(const Call& call, int part, int parts) const"
        return body(head, [line for group in self.groups for line in group.pack])

    def bind(self) -> list[str]:
        """Point the cursor at the rows of the first step."""
        slots = [f"c.set({slot}, {self.rows(*key)});" for key, slot in self.numbers.slots.items()]
        return body("void bind(Cursor<SLOTS>& c, const Call& call, int64_t t, int64_t direction) const", slots)

    def hold(self) -> list[str]:
        """Keep the cursor on one sample's row of what is not carried along, and on the thread's own scratch."""
        kinds = {slot: self.kernel.buffer(name).kind for (name, _), slot in self.numbers.slots.items()}
        lines = [f"c.hold({slot}, sample);" for slot, kind in kinds.items() if kind in (Kind.STREAM, Kind.STATE)]
        lines += [f"c.shift({slot}, back);" for slot, kind in kinds.items() if kind is Kind.SCRATCH]
        unused = "[[maybe_unused]] int64_t"
        return body(f"void hold([[maybe_unused]] Cursor<SLOTS>& c, {unused} sample, {unused} back) const", lines)

    def rows(self, name: str, after: bool) -> str:
        """First row, distance of rows, distance of steps."""
        kind = self.kernel.buffer(name).kind
        if kind is Kind.SCRATCH:
            return f"scratch{self.scratch.index(name)}, padded({self.width[name]}), 0"
        a = self.argument[name]
        strides = f"call.second_strides[{a}], direction * call.first_strides[{a}]"
        return {
            Kind.STREAM: f"call.at({a}, t), {strides}",
            Kind.STATE: f"call.at({a}, t + {'!' if after else ''}call.reverse), {strides}",
            Kind.RUNNING: f"call.at({a}), call.first_strides[{a}], 0",
            Kind.VECTOR: f"call.at({a}), 0, 0",
        }[kind]

    def step(self) -> list[str]:
        meet = "if (share.parts > 1 && !barrier->wait(share)) return false;"
        lines = []
        for group, first in zip(self.groups, barriers(self.kernel, [g.cut for g in self.groups]), strict=True):
            lines += [*([meet] if first else []), f"group{group.index}(thread, share);"]
        return body("INLINE bool step(Thread& thread, Share& share) const", [*lines, "return true;"])

    def reduce(self) -> list[str]:
        sums = [f"sums[{i}].reduce(call.at({self.argument[name]}), threads);" for i, name in enumerate(self.sums)]
        head = "void reduce([[maybe_unused]] const Call& call, [[maybe_unused]] int threads) const"
        return body(head, sums)


def _tiles(kernel: Kernel, dots: list[tuple[int, ...]], size: int) -> list[Tiling]:
    """A group without dot products is cut as one of its width with some: threads that share columns then meet less."""
    tiles = [tile(group.width, d, size) for group, d in zip(kernel.groups, dots, strict=True)]
    busy = {group.width: t for group, t in zip(kernel.groups, tiles, strict=True) if t.vectors}
    models = [busy.get(group.width, t) for group, t in zip(kernel.groups, tiles, strict=True)]
    return [
        t if t.vectors else replace(t, units=model.units, point=model.point)
        for t, model in zip(tiles, models, strict=True)
    ]
