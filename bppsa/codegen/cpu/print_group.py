"""Print a group's loop nest: blocks of units, chunks of rows; in each the dot products first, then the expressions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from bppsa.codegen.arrange.barriers import Cut
from bppsa.codegen.arrange.tile import Tiling
from bppsa.codegen.cpu.print_point import Point, RuntimeNumbers, body
from bppsa.codegen.language.expr import Access, Dot
from bppsa.codegen.language.ir import FOLDS, Group, Kernel, Reduce, Store

# What a fold starts with, and how vectors of a row become one number, over blocks of columns.
FIRST = {
    Reduce.ROWS: "V {0}[CHUNK] = {{}};",
    Reduce.MAX: "V {0}[CHUNK]; for (V& v : {0}) v = splat<V>(-__builtin_inf());",
}
ACROSS = {
    Reduce.ROWS: "(b == 0 ? 0 : {at}) + sum({fold})",
    Reduce.MAX: "b == 0 ? largest({fold}) : larger({at}, largest({fold}))",
}


class GroupText:
    """Members of `struct Kernel` for one group: `blocks<i>`, `point<i>`, `group<i>`; `panel<i>_<s>` for each source.

    argument: place of a buffer among the kernel's arguments. sums: the COLUMN_SUM buffers.
    """

    def __init__(
        self,
        numbers: RuntimeNumbers,
        index: int,
        group: Group,
        sources: Mapping[tuple[Access, int], tuple[Dot, ...]],
        tile: Tiling,
        argument: Mapping[str, int],
        sums: list[str],
    ) -> None:
        self.index, self.tile = index, tile
        self.cut: Cut = (group.width, tile.units, tile.point)
        self.blocks = math.ceil(group.width / tile.units)
        self.panels = [f"panel{index}_{s}" for s in range(len(sources))]
        self.depth = [numbers.number(depth) for _, depth in sources]
        self.point = Point(numbers, group, tuple(sources.values()), sums)
        folds = [store for store in group.stores if store.reduce in FOLDS]
        self.members = [
            *(f"using Gemm{index}_{s} = Gemm<Vec<{tile.lanes}>, {v}>;" for s, v in enumerate(tile.vectors)),
            f"const Blocks blocks{index}{{{numbers.number(group.width)}, {tile.units}, {tile.point}}};",
            *self.point.lines(index),
            *self.loops(
                [self.dot_products(numbers, s, rows) for s, (rows, _) in enumerate(sources)],
                [self.fold(numbers, n, store) for n, store in enumerate(folds)],
                [FIRST[store.reduce] for store in folds],
            ),
        ]
        self.place = [
            f"{panel} = arena.take<real>(blocks{index}.count * {depth} * Gemm{panel[5:]}::PITCH);"
            for panel, depth in zip(self.panels, self.depth, strict=True)
        ]
        self.pack = [
            line for s, dots in enumerate(sources.values()) for line in self.pack_source(numbers, s, dots, argument)
        ]

    def pack_source(
        self, numbers: RuntimeNumbers, s: int, dots: tuple[Dot, ...], argument: Mapping[str, int]
    ) -> list[str]:
        """Each thread packs some blocks; columns beyond the last dot's stay 0."""
        depth = self.depth[s]
        columns = [
            f"::pack(call, {argument[d.weight]}, blocks.begin(b){numbers.plus(d.column)}, blocks.size(b), {depth},"
            f" panel + {n} * blocks.units, PITCH);"
            for n, d in enumerate(dots)
        ]
        loop = [
            f"real* panel = {self.panels[s]} + b * {depth} * PITCH;",
            f"std::memset(panel, 0, {depth} * PITCH * sizeof(real));",
            *columns,
        ]
        return body(
            "",
            [
                f"const Blocks& blocks = blocks{self.index};",
                f"constexpr int64_t PITCH = Gemm{self.index}_{s}::PITCH;",
                *body("for (int64_t b = part; b < blocks.count; b += parts)", loop),
            ],
        )

    def dot_products(self, numbers: RuntimeNumbers, s: int, rows: Access) -> str:
        slot, depth, gemm = numbers.slot(rows), self.depth[s], f"Gemm{self.index}_{s}"
        source = f"c.at[{slot}] + row * c.row[{slot}]{numbers.plus(rows.column)}, c.row[{slot}]"
        return f"{gemm}::run({source}, {self.panels[s]} + b * {depth} * {gemm}::PITCH, {depth}, dot{s}, rows);"

    def fold(self, numbers: RuntimeNumbers, n: int, store: Store) -> str:
        target = store.target
        slot = numbers.slot(target)
        at = f"c.at[{slot}][(row + i) * c.row[{slot}]{numbers.plus(target.column)}]"
        total = ACROSS[store.reduce].format(at=at, fold=f"fold{n}[i]")
        return f"for (int64_t i = 0; i < rows; ++i) {at} = {total};"

    def loops(self, gemms: list[str], folds: list[str], first: list[str]) -> list[str]:
        i, dots = self.index, range(len(gemms))
        types = "".join(f", Gemm{i}_{s}" for s in dots)
        operands = [f"dot{s} + (j - blocks.begin(b))" for s in dots] + [f"fold{n}" for n in range(len(folds))]
        call = f"point{i}<V{types}>(thread, {{}}, {', '.join(['row, rows, j, blocks.units', *operands])});"
        chunk = [
            "const int64_t rows = std::min(share.end - row, CHUNK);",
            *gemms,
            *(line.format(f"fold{n}") for n, line in enumerate(first)),
            "int64_t j = blocks.begin(b);",
            f"for (; j + LANES<V> <= blocks.end(b); j += LANES<V>) {call.format('Full<V>{}')}",
            f"if (j < blocks.end(b)) {call.format('Tail<V>(blocks.end(b) - j)')}",
            *folds,
        ]
        head = [
            f"using V = Vec<{self.tile.point}>;",
            *(f"alignas(64) real dot{s}[CHUNK * Gemm{i}_{s}::PITCH + LANES<V>];" for s in dots),
            "[[maybe_unused]] const auto& c = thread.cursor;",
            f"const Blocks blocks = blocks{i};",
            "const int64_t last = blocks.first(share.part + 1, share.parts);",
        ]
        rows = body("for (int64_t row = share.begin; row < share.end; row += CHUNK)", chunk)
        blocks = body("for (int64_t b = blocks.first(share.part, share.parts); b < last; ++b)", rows)
        return body(f"NOINLINE void group{i}(Thread& thread, const Share& share) const", [*head, *blocks])


def by_source(kernel: Kernel, group: Group) -> dict[tuple[Access, int], tuple[Dot, ...]]:
    """Dot products of one group that read the same rows, which one panel of weights serves; keys: (rows, depth)."""
    found: dict[tuple[Access, int], tuple[Dot, ...]] = {}
    for term in group.dots:
        key = (term.source, kernel.buffer(term.weight).depth)
        found[key] = (*found.get(key, ()), term)
    return found
