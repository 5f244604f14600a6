"""Print a kernel as one C++ translation unit: the hand-written skeleton around this kernel's derived expressions.

Every width, column and depth is a run-time number (`dims`), so kernels of one structure share one text and one library.
"""

from __future__ import annotations

import functools
from pathlib import Path

from bppsa.codegen.hazards import barriers, staged
from bppsa.codegen.ir import Access, Dot, Group, Kernel, Kind, Reduce
from bppsa.codegen.print_point import CPP, Numbers, Point, body
from bppsa.codegen.tile import tile

__all__ = ["CPP", "dims", "source"]

BYTES = {"float": 4, "double": 8}
SKELETON = Path(__file__).parent / "skeleton"


@functools.cache
def _skeleton(name: str) -> str:
    return (SKELETON / name).read_text()


def source(kernel: Kernel, real: str) -> str:
    """The whole translation unit; `real` is "float" or "double"."""
    return _Unit(kernel, real).text()


def dims(kernel: Kernel) -> list[int]:
    """The run-time numbers that `source` of this kernel refers to, in its order; a non-integer by the bits of its double."""
    return _Unit(kernel, "float").numbers.dims


def _by_source(kernel: Kernel, group: Group) -> dict[tuple[Access, int], tuple[Dot, ...]]:
    """Dot products of one group that read the same rows, which one panel of weights serves; keys: (rows, depth)."""
    found: dict[tuple[Access, int], tuple[Dot, ...]] = {}
    for term in group.dots:
        key = (term.source, kernel.buffer(term.weight).depth)
        found[key] = (*found.get(key, ()), term)
    return found


class _Unit:
    """One kernel as a `struct Kernel`."""

    def __init__(self, kernel: Kernel, real: str) -> None:
        self.kernel, self.real = staged(kernel), real
        self.numbers = Numbers(self.kernel)
        self.argument = {b.name: i for i, b in enumerate(self.kernel.arguments)}
        self.scratch = [b for b in self.kernel.buffers if b.kind is Kind.SCRATCH]
        self.sums = [b for b in self.kernel.buffers if b.kind is Kind.COLUMN_SUM]
        self.width = {b.name: self.numbers.number(b.width) for b in (*self.scratch, *self.sums)}
        self.groups = [_GroupText(self, i, group) for i, group in enumerate(self.kernel.groups)]

    def text(self) -> str:
        skeleton = map(_skeleton, ("vec.h", "math.h", "gemm.h", "sweep.h"))
        groups = [line for group in self.groups for line in group.lines()]
        members = [*self.head(), *groups, *self.place(), *self.pack(), *self.bind(), *self.step(), *self.reduce()]
        kernel = ["namespace {", *body("struct Kernel", members)[:-1], "};", "}  // namespace"]
        return "\n".join([f"using real = {self.real};", *skeleton, *kernel, _skeleton("driver.h")])

    def head(self) -> list[str]:
        pointers = [f"panel{g.index}_{s}" for g in self.groups for s in range(len(g.sources))]
        pointers += [f"scratch{i}" for i in range(len(self.scratch))]
        return [
            f"static constexpr bool ALONG = {str(self.kernel.along).lower()};",
            f"static constexpr int SLOTS = {len(self.numbers.slots)}, SUMS = {len(self.sums)};",
            "struct Thread { Cursor<SLOTS> cursor; std::array<ColumnSum, SUMS> sums; };",
            "const int64_t* dims;",
            "Barrier* barrier;",
            *(f"real* {name};" for name in pointers),
            "std::array<ColumnSum, SUMS> sums;",
            "Kernel(const int64_t* dims, Barrier* barrier) : dims(dims), barrier(barrier) {}",
        ]

    def place(self) -> list[str]:
        """Lay out the workspace."""
        scratch = [f"scratch{i} = arena.take<real>(rows * padded({self.width[b.name]}));" for i, b in enumerate(self.scratch)]
        sums = [f"sums[{i}].place(arena, {self.width[b.name]}, threads);" for i, b in enumerate(self.sums)]
        panels = [line for group in self.groups for line in group.place()]
        return body("void place(Arena& arena, int64_t rows, int threads)", [*panels, *scratch, *sums])

    def pack(self) -> list[str]:
        return body(
            "void pack(const Call& call, int part, int parts) const",
            [line for group in self.groups for s in range(len(group.sources)) for line in group.pack(s)],
        )

    def reduce(self) -> list[str]:
        lines = [f"sums[{i}].reduce(call.at({self.argument[b.name]}), threads);" for i, b in enumerate(self.sums)]
        return body("void reduce(const Call& call, int threads) const", lines)

    def bind(self) -> list[str]:
        """Point the cursor at the rows of the first step."""
        return body(
            "void bind(Cursor<SLOTS>& c, const Call& call, int64_t t, int64_t direction) const",
            [f"c.set({slot}, {self.rows(name, after)});" for (name, after), slot in self.numbers.slots.items()],
        )

    def rows(self, name: str, after: bool) -> str:
        """First row, distance of rows, distance of steps."""
        kind = self.kernel.buffer(name).kind
        if kind is Kind.SCRATCH:
            index = next(i for i, b in enumerate(self.scratch) if b.name == name)
            return f"scratch{index}, padded({self.width[name]}), 0"
        a = self.argument[name]
        row, step = f"call.row_strides[{a}]", f"direction * call.time_strides[{a}]"
        return {
            Kind.STREAM: f"call.at({a}, t), {row}, {step}",
            Kind.STATE: f"call.at({a}, t + {'!' if after else ''}call.reverse), {row}, {step}",
            Kind.RUNNING: f"call.at({a}), {row}, 0",
            Kind.VECTOR: f"call.at({a}), 0, 0",
        }[kind]

    def step(self) -> list[str]:
        meet = "if (share.parts > 1) barrier->wait(share.parts);"
        lines = []
        for group, first in zip(self.groups, barriers(self.kernel, [group.cut for group in self.groups]), strict=True):
            lines += [*([meet] if first else []), f"group{group.index}(thread, share);"]
        return body("INLINE void step(Thread& thread, const Share& share) const", lines)


class _GroupText:
    """A group's loop nest: blocks of units, chunks of rows; in each the dot products first, then the expressions."""

    def __init__(self, unit: _Unit, index: int, group: Group) -> None:
        number = unit.numbers.number
        self.unit, self.index, self.group = unit, index, group
        self.sources = _by_source(unit.kernel, group)
        self.tile = tile(group.width, tuple(map(len, self.sources.values())), BYTES[unit.real])
        self.most = self.tile.units(tuple(map(len, self.sources.values())))
        self.cut = (group.width, self.most, self.tile.point)  # groups cut alike share their columns alike between threads
        self.width = number(group.width)
        self.depth = [number(depth) for _, depth in self.sources]
        self.point = Point(unit.numbers, group, tuple(self.sources.values()), [b.name for b in unit.sums])
        self.gemm = [self.dot_products(s, rows) for s, (rows, _) in enumerate(self.sources)]
        self.folds = [unit.numbers.slot(store.target) for store in group.stores if store.reduce is Reduce.ROWS]
        self.fold_columns = [unit.numbers.column(s.target.column) for s in group.stores if s.reduce is Reduce.ROWS]
        self.packs = [self.pack_source(s, dots) for s, dots in enumerate(self.sources.values())]

    def place(self) -> list[str]:
        return [
            f"panel{self.index}_{s} = arena.take<real>(blocks{self.index}.count * {depth} * Gemm{self.index}_{s}::PITCH);"
            for s, depth in enumerate(self.depth)
        ]

    def pack(self, s: int) -> list[str]:
        return self.packs[s]

    def pack_source(self, s: int, dots: tuple[Dot, ...]) -> list[str]:
        unit, i, depth = self.unit, self.index, self.depth[s]
        loop = [
            f"real* panel = panel{i}_{s} + b * {depth} * PITCH;",
            f"std::memset(panel, 0, {depth} * PITCH * sizeof(real));",
            *(
                f"::pack(call, {unit.argument[d.weight]}, blocks.begin(b){unit.numbers.column(d.column)}, blocks.size(b), {depth},"
                f" panel + {n} * blocks.units, PITCH);"
                for n, d in enumerate(dots)
            ),
        ]
        head = [f"const Blocks& blocks = blocks{i};", f"constexpr int64_t PITCH = Gemm{i}_{s}::PITCH;"]
        return body("", [*head, *body("for (int64_t b = part; b < blocks.count; b += parts)", loop)])

    def dot_products(self, s: int, rows: Access) -> str:
        slot, i = self.unit.numbers.slot(rows), self.index
        column = self.unit.numbers.column(rows.column)
        return (
            f"Gemm{i}_{s}::run(c.at[{slot}] + row * c.row[{slot}]{column}, c.row[{slot}],"
            f" panel{i}_{s} + b * {self.depth[s]} * Gemm{i}_{s}::PITCH, {self.depth[s]}, dot{s}, rows);"
        )

    def lines(self) -> list[str]:
        i, t = self.index, self.tile
        gemms = [f"using Gemm{i}_{s} = Gemm<Vec<{t.lanes}>, {v}>;" for s, v in enumerate(t.vectors)]
        blocks = f"const Blocks blocks{i}{{{self.width}, {self.most}, {t.point}}};"
        return [*gemms, blocks, *self.point.lines(i), *self.loops()]

    def loops(self) -> list[str]:
        i, dots, folds = self.index, range(len(self.sources)), range(len(self.folds))
        shift = "".join(f", dot{s} + (j - blocks.begin(b))" for s in dots) + "".join(f", fold{n}" for n in folds)
        gemms = "".join(f", Gemm{i}_{s}" for s in dots)
        point = f"point{i}<V{gemms}>(thread, {{}}, row, rows, j, blocks.units{shift});"
        chunk = [
            "const int64_t rows = std::min(share.end - row, CHUNK);",
            *self.gemm,
            *(f"V fold{n}[CHUNK] = {{}};" for n in folds),
            "int64_t j = blocks.begin(b);",
            f"for (; j + LANES<V> <= blocks.end(b); j += LANES<V>) {point.format('Full<V>{}')}",
            f"if (j < blocks.end(b)) {point.format('Tail<V>(blocks.end(b) - j)')}",
            *(self.fold(n) for n in folds),
        ]
        loops = body(
            "for (int64_t b = blocks.first(share.part, share.parts); b < blocks.first(share.part + 1, share.parts); ++b)",
            body("for (int64_t row = share.begin; row < share.end; row += CHUNK)", chunk)
        )
        head = [
            f"using V = Vec<{self.tile.point}>;",
            *(f"alignas(64) real dot{s}[CHUNK * Gemm{i}_{s}::PITCH + LANES<V>];" for s in dots),
            *(["const auto& c = thread.cursor;"] if self.sources or self.folds else []),
            f"const Blocks blocks = blocks{i};",
        ]
        return body(f"__attribute__((noinline)) void group{i}(Thread& thread, const Share& share) const", [*head, *loops])

    def fold(self, n: int) -> str:
        slot = self.folds[n]
        target = f"c.at[{slot}][(row + i) * c.row[{slot}]{self.fold_columns[n]}]"
        return f"for (int64_t i = 0; i < rows; ++i) {target} = (b == 0 ? 0 : {target}) + sum(fold{n}[i]);"
