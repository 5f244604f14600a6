"""Sort stores into the groups of a step: what one loop over rows and columns can compute together.

A store waits for the buffers it reads that the step itself fills: its level is one more than theirs. Stores of one
level and width make a group. Costly work that several groups need is done by the first and stored; what only one group
needs is done there, however early it could be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from bppsa.codegen.assembling.columns import ValueNumbering
from bppsa.codegen.language.expr import (
    EXPENSIVE,
    Access,
    Dot,
    Expr,
    Shape,
    contiguous,
    load,
    rewrite,
    span,
    topological,
)
from bppsa.codegen.language.ir import FOLDS, Buffer, Group, Kind, Reduce, Store
from bppsa.codegen.lowering.roots import Root

MOST_REPEATED = 32  # cheap ops that another group does again, where storing their result would cost as much
TOO_MUCH = MOST_REPEATED + 1
GroupExtent = int | Shape  # so many columns, or several axes
Home = tuple[int, GroupExtent]  # the group that computes something: its level and columns
ValueSlice = tuple[Expr, GroupExtent]  # a value of such columns; 1 for what is the same in all of them


@dataclass(frozen=True)
class StoredColumns:
    """Columns [start, start + width) of a value stand at `access`, or all of several axes."""

    start: int
    extent: GroupExtent
    access: Access
    level: int  # of the group that stores it

    def holds(self, start: int, extent: GroupExtent) -> bool:
        return within((start, extent), (self.start, self.extent))


def within(part: tuple[int, GroupExtent], whole: tuple[int, GroupExtent]) -> bool:
    """Whether `whole` has all columns of `part`, each from a start on; what has several axes holds nothing but
    itself."""
    (start, extent), (whole_start, whole_extent) = part, whole
    if isinstance(extent, tuple) or isinstance(whole_extent, tuple):
        return part == whole
    return whole_start <= start and start + extent <= whole_start + whole_extent


def count(extent: GroupExtent) -> int:
    return prod(extent) if isinstance(extent, tuple) else extent


def group_of(extent: GroupExtent, stores: Sequence[Store]) -> Group:
    return Group(count(extent), tuple(stores), extent if isinstance(extent, tuple) else ())


@dataclass
class Grouping:
    """Roots sorted into groups. A level is how many groups must have stored before: what is of one level and width is
    one group; what a later level would compute again, at a price, goes through scratch."""

    buffers: dict[str, Buffer]
    scratch_widths: list[int]
    columns: ValueNumbering = field(default_factory=ValueNumbering)
    levels: dict[Expr, int] = field(default_factory=dict)
    filled: dict[tuple[str, bool], list[tuple[int, int, int]]] = field(default_factory=dict)  # -> (start, end, level)
    places: dict[int, list[StoredColumns]] = field(default_factory=dict)  # by number in `columns`
    work: dict[ValueSlice, int] = field(default_factory=dict)  # cheap ops, or TOO_MUCH, on what the step stores anyway
    delays: dict[Root, int] = field(default_factory=dict)  # the first level at which these may be stored
    cuts: dict[Home, dict[Expr, Expr]] = field(default_factory=dict)  # what a group computes of values, without rework

    def run(self, roots: Sequence[Root]) -> tuple[Group, ...]:
        """`roots` come in an order in which what a store reads within the step is stored before it."""
        for root in roots:
            self.fill(root)
        roots = [*roots, *self.shared(roots)]
        stores: dict[Home, list[Store]] = {}
        for root in roots:
            home = self.home(root)
            stores.setdefault(home, []).append(Store(root.target, self.without_rework(root), root.reduce))
        return tuple(group_of(home[1], stores[home]) for home in sorted(stores, key=lambda home: home[0]))

    def fill(self, root: Root) -> None:
        """Note at which level the root is stored, and that its value can be read there."""
        self.level(root.value)
        level, target = self.home(root)[0], root.target
        if self.kind(target) is Kind.RUNNING:  # a load there reads what the previous step stored
            return
        width = 1 if root.reduce in FOLDS else root.width
        start, stop = span(target, width, root.shape) if root.shape else (target.column, target.column + width)
        self.filled.setdefault((target.buffer, target.after), []).append((start, stop, level))
        if root.reduce is Reduce.NONE:
            self.remember(root)

    def remember(self, root: Root) -> None:
        number, start = self.columns.of(root.value)
        if start is not None or root.width == 1:
            place = StoredColumns(start or 0, root.extent, root.target, self.home(root)[0])
            self.places.setdefault(number, []).append(place)

    def home(self, root: Root) -> Home:
        return max(self.levels[root.value], self.delays.get(root, 0)), root.extent

    def kind(self, access: Access) -> Kind:
        return self.buffers[access.buffer].kind if access.buffer in self.buffers else Kind.SCRATCH

    def level(self, expr: Expr) -> int:
        for node in topological((expr,), self.levels):
            self.levels[node] = self.level_of_leaf(node) if not node.args else max(self.levels[a] for a in node.args)
        return self.levels[expr]

    def level_of_leaf(self, node: Expr) -> int:
        if isinstance(node.payload, Access):
            back = any(stride < 0 for stride in node.payload.strides)
            access = replace(node.payload, column=0) if back else node.payload
            return self.ready(access, 1 if access.broadcast else None)
        if isinstance(node.payload, Dot):
            return self.ready(node.payload.source, self.buffers[node.payload.weight].depth)
        return 0

    def ready(self, access: Access, width: int | None) -> int:
        """The first level at which the columns read may be read: after every store of this step into them.

        Without a width the whole buffer right of the column counts, which is never too early."""
        end = float("inf") if width is None else access.column + width
        spans = self.filled.get((access.buffer, access.after), [])
        return 1 + max((level for low, high, level in spans if low < end and high > access.column), default=-1)

    def part(self, node: Expr, extent: GroupExtent) -> ValueSlice:
        return node, 1 if self.columns.of(node)[1] is None else extent

    def place(self, part: ValueSlice, before: float = math.inf) -> Access | None:
        """The place at which the step stores these columns of the value, in a group before that level."""
        node, extent = part
        number, start = self.columns.of(node)
        for known in self.places.get(number, ()):
            if known.level >= before:
                continue
            if start is None:
                return replace(known.access, broadcast=True)
            if known.holds(start, extent):
                return replace(known.access, column=known.access.column + start - known.start)
        return None

    def expensive(self, part: ValueSlice) -> bool:
        """Whether it takes more than a little cheap work on what the step stores anyway. By a stack: it may be deep."""
        stack = [part]
        while stack:
            node, extent = top = stack[-1]
            total = len(node.args) > 0 if node.op not in EXPENSIVE else TOO_MUCH
            for arg in (self.part(a, extent) for a in node.args):
                if total > MOST_REPEATED or top in self.work:
                    break
                if arg not in self.work:
                    stack.append(arg)
                    break
                total += 0 if self.work[arg] > MOST_REPEATED and self.place(arg) is not None else self.work[arg]
            if stack[-1] == top:
                self.work.setdefault(top, min(total, TOO_MUCH))
                stack.pop()
        return self.work[part] > MOST_REPEATED

    def shared(self, roots: Sequence[Root]) -> Iterator[Root]:
        """Stores into new scratch of what is expensive and would be computed in several groups. Users come before
        what they use, so that it is known who computes them."""
        wanted: dict[ValueSlice, set[Home]] = {}
        for root in roots:
            home = self.home(root)
            wanted.setdefault(self.part(root.value, root.extent), set()).add(home)
        height: dict[Expr, int] = {}
        for node in topological(root.value for root in roots):
            height[node] = 1 + max((height[a] for a in node.args), default=0)
        waiting: dict[int, dict[int, list[ValueSlice]]] = {}  # by height, by number: slices of one value come together

        def wait(part: ValueSlice) -> None:
            alike = waiting.setdefault(height[part[0]], {}).setdefault(self.columns.of(part[0])[0], [])
            if part not in alike:
                alike.append(part)

        for part in wanted:
            wait(part)
        for at in range(max(height.values(), default=0), 0, -1):
            for alike in waiting.get(at, {}).values():
                yield from self.shared_slices(alike, wanted)
                for part in alike:
                    for arg in part[0].args:
                        wanted.setdefault(self.part(arg, part[1]), set()).update(wanted[part])
                        wait(self.part(arg, part[1]))

    def shared_slices(self, alike: Sequence[ValueSlice], wanted: dict[ValueSlice, set[Home]]) -> Iterator[Root]:
        """The same of slices of one value; `wanted` then says who computes them, not who needs them."""
        needed = {part: set(wanted[part]) for part in alike}
        for part in sorted(alike, key=lambda part: -count(part[1])):
            level = self.levels[part[0]]
            later = {home for home in wanted[part] if home[0] > level}
            if not later or not self.expensive(part):
                continue
            around = [other for other in alike if self.overlap(part, other)]
            if self.place(part) is None:
                if len(set().union(*(needed[other] for other in around))) < 2:
                    continue
                first = min(level for level, _ in later)
                whole = next((other for other in around if self.covers(other, part, first)), part)
                root = self.into_scratch(*whole)
                self.remember(root)
                wanted[whole].add((self.levels[whole[0]], whole[1]))
                yield root
            wanted[part] -= later

    def into_scratch(self, node: Expr, extent: GroupExtent) -> Root:
        self.scratch_widths.append(count(extent))
        shape = extent if isinstance(extent, tuple) else ()
        name = f"scratch{len(self.scratch_widths) - 1}"
        access = Access(name, broadcast=node.uniform, strides=contiguous(shape))
        return Root(access, node, count(extent), shape=shape)

    def range_of(self, part: ValueSlice) -> tuple[int, GroupExtent]:
        return self.columns.of(part[0])[1] or 0, part[1]

    def overlap(self, one: ValueSlice, two: ValueSlice) -> bool:
        (start, extent), (other_start, other) = self.range_of(one), self.range_of(two)
        if isinstance(extent, tuple) or isinstance(other, tuple):
            return (start, extent) == (other_start, other)
        return start < other_start + other and other_start < start + extent

    def covers(self, whole: ValueSlice, part: ValueSlice, before: int) -> bool:
        """Whether it has all columns of `part`, and is known before that level."""
        return within(self.range_of(part), self.range_of(whole)) and self.levels[whole[0]] < before

    def without_rework(self, root: Root) -> Expr:
        level = self.home(root)[0]

        def cut(node: Expr) -> Expr | None:
            part = self.part(node, root.extent)
            if self.levels[node] >= level or not self.expensive(part):
                return None
            access = self.place(part, level)
            return None if access is None else load(access)

        return rewrite(root.value, cut, self.cuts.setdefault((level, root.extent), {}))
