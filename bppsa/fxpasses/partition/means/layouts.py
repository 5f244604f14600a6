"""In what order a dimension has what is of each row: copies of all rows one behind the other, or of each side by side.

What micro-batches give is the batch's only where the two are not mixed up: all rows doubled, against each row doubled,
pairs other values in a micro-batch than in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import sympy
from torch import fx
from torch.utils._pytree import tree_leaves

from bppsa.fxpasses.partition.capture.whole import Custom
from bppsa.fxpasses.partition.means.sizes import argument, is_tensor, name_of, rows_at, size_of, symbols


@dataclass(frozen=True)
class RowOrder:
    """Tells which row an entry of a dimension belongs to: of before * rows * after entries, number (i * rows + row) *
    after + j is of that row."""

    before: Any = 1
    after: Any = 1


PLAIN = RowOrder()
ALIKE = RowOrder(0, 0)  # all rows have the same, such as of zeros
SPREADING = frozenset(
    (
        *("zeros", "ones", "full", "empty", "rand", "randn", "randint", "expand", "expand_copy", "broadcast_to"),
        *("new_zeros", "new_ones", "new_full", "new_empty", "expand_as", "normal"),
    )
)
RESHAPING = (
    *("view", "reshape", "_unsafe_view", "view_as", "reshape_as", "_reshape_copy", "view_copy", "flatten"),
    *("unflatten", "ravel"),
)
PIECES = ("split", "split_with_sizes", "chunk", "unsafe_split")
PICKING = ("index", "masked_select", "_unsafe_index", "index_put", "index_put_")


class RowOrders:
    """The row orders of the values of a graph.

    rows: symbols of how many there are, to which some may be added. sizes: the example's, by their symbols. Two symbols
    may stand for one size, as for the steps of outputs and of labels, where PyTorch compares products of sizes alone.
    """

    def __init__(self, rows: Set[Any], sizes: Mapping[Any, int]) -> None:
        self.rows, self.sizes = rows, sizes
        self.known: dict[fx.Node, RowOrder] = {}

    def note(self, node: fx.Node) -> bool:
        """Finds the order of a node's rows; False where they are in none. To be called in the graph's order."""
        found = RULES.get(name_of(node), RowOrders.kept)(self, node)
        if found is not None:
            self.known[node] = found
        return found is not None

    def of(self, node: Any) -> RowOrder | None:
        """None for what has no rows."""
        if not isinstance(node, fx.Node) or not (self.axis(node) is not None or node in self.known):
            return None
        return self.known.get(node, PLAIN)

    def axis(self, node: Any) -> int | None:
        return next(iter(rows_at(node, self.rows)), None)

    def times(self, size: Any) -> Any:
        """How many entries there are for each row; None for what is no multiple of the number of rows."""
        found = symbols(size) & self.rows
        each = sympy.cancel(size / next(iter(found))) if len(found) == 1 else None
        return None if each is None or symbols(each) & found else each

    def each(self, node: fx.Node) -> Any:
        return self.times(size_of(node)[self.axis(node)])

    def common(self, nodes: Iterable[Any]) -> RowOrder | None:
        """The layout that all have; None where they are unlike, or none has rows."""
        found = [layout for node in nodes if (layout := self.of(node)) is not None]
        first = next((layout for layout in found if layout != ALIKE), ALIKE)
        return first if found and all(one in (ALIKE, first) or self.are_one(one, first) for one in found) else None

    def are_one(self, a: RowOrder, b: RowOrder) -> bool:
        """Whether two dimensions of one size have one order: where what is after the rows is one, so is what is
        before."""
        known = a.before == b.before or a.after == b.after
        return known and self.same(a.before, b.before) and self.same(a.after, b.after)

    def same(self, a: Any, b: Any) -> bool:
        """Whether they are one size in the example."""
        if a is None or b is None:
            return False
        numbers = {symbol: n for symbol, n in self.sizes.items() if symbol not in self.rows}
        return a == b or bool(sympy.expand(sympy.sympify(a - b).xreplace(numbers)) == 0)

    def quotient(self, a: Any, b: Any) -> Any:
        """a / b where that is a whole number, None elsewhere."""
        if a is None or b is None or b == 0:
            return None
        found = sympy.cancel(sympy.sympify(a) / b)
        if not found.is_integer:
            return 1 if symbols(a) and symbols(b) and self.same(a, b) else None
        return found

    def change(self, node: fx.Node, by: fx.Node) -> bool:
        """Notes that a node is changed in place, itself or what is a view of it; False where it has no layout then."""
        if self.of(node) != ALIKE or self.of(by) is None:
            return True
        if size_of(node)[self.axis(node)] != size_of(by)[self.axis(by)]:
            return self.of(by) == ALIKE
        self.known[node] = self.known.get(by, PLAIN)
        return True

    # Rules

    def kept(self, node: fx.Node) -> RowOrder | None:
        """The layout of what puts together row by row what it is given."""
        given = [source for source in node.all_input_nodes if self.of(source) is not None]
        if not given:
            return ALIKE if name_of(node) in SPREADING else None
        return self.fitting(node, self.common(given))

    def fitting(self, node: fx.Node, layout: RowOrder | None) -> RowOrder | None:
        """The layout where the node has as many entries for each row."""
        if layout is None or not layout.after or not is_tensor(node):
            return layout
        each = self.each(node)
        if self.same(each, layout.before * layout.after):
            return layout
        tried = isinstance(node.target, Custom) or node.op == "call_module"  # with entries of each row side by side
        return RowOrder(1, each) if tried and layout == PLAIN else None

    def made(self, node: fx.Node) -> RowOrder | None:
        return ALIKE

    def numbered(self, node: fx.Node) -> RowOrder | None:
        return PLAIN if self.each(node) == 1 else None

    def indexed(self, node: fx.Node) -> RowOrder | None:
        """A mask takes rows in their order, if they are in front. after=0: what it takes is of unlike rows."""
        given = [arg for arg in tree_leaves(node.args[:2]) if self.of(arg) is not None]
        size = symbols(size_of(node)[self.axis(node)])
        if size & {s for arg in given for s in symbols(size_of(arg))}:
            put = [arg for arg in node.args[2:3] if self.of(arg) is not None and symbols(size_of(arg)) & size]
            return self.fitting(node, self.common([*given, *put]))
        around = {self.outer(arg) for arg in given}
        if self.common(given) is None or len(around) != 1:
            return None
        return PLAIN if around == {1} else RowOrder(around.pop(), 0)

    def outer(self, node: fx.Node) -> Any:
        """How often a dimension in front of the rows, and their layout, repeats them all."""
        layout, axis = self.of(node), self.axis(node)
        assert layout is not None
        return sympy.prod(size_of(node)[:axis]) * (1 if layout == ALIKE else layout.before)

    def reshaped(self, node: fx.Node) -> RowOrder | None:
        """Whatever is before all rows, or within each, stays there."""
        source, layout = node.args[0], self.of(node.args[0])
        if not isinstance(source, fx.Node) or layout is None:
            return None
        if layout == ALIKE and self.each(source) != 1:
            same_place = self.same(sympy.prod(size_of(source)[: self.axis(source)]), before(node, self.axis(node)))
            return ALIKE if same_place and self.same(self.each(source), self.each(node)) else None
        around = self.quotient(self.outer(source), before(node, self.axis(node)))
        within = None if around is None else self.quotient(self.each(node), around)
        if within is None:
            return None
        found = RowOrder(around, within)
        return ALIKE if layout == ALIKE and found == PLAIN else found

    def joined(self, node: fx.Node) -> RowOrder | None:
        """Parts that are put along the rows are copies of them all."""
        parts, axis = node.args[0], self.axis(node)
        if not isinstance(parts, (list, tuple)) or argument(node, "dim", 0) % len(size_of(node)) != axis:
            return self.kept(node)
        found = [self.of(part) for part in parts]
        after = {layout.after for layout in found if layout is not None and layout != ALIKE} or {1}
        if any(layout is None for layout in found) or len(after) != 1:
            return None
        if set(found) == {ALIKE}:
            return ALIKE
        (inner,) = after
        around = self.quotient(self.each(node), inner)
        whole = all(self.quotient(self.each(part), inner) is not None for part in parts)
        return RowOrder(around, inner) if around is not None and whole else None

    def repeated(self, node: fx.Node) -> RowOrder | None:
        source, each = node.args[0], self.each(node)
        layout, axis = self.of(source), self.axis(node)
        if layout == ALIKE or each is None or not isinstance(source, fx.Node):
            return layout if each is not None else None
        if layout is not None:
            times = self.quotient(each, layout.before * layout.after)
            return None if times is None else RowOrder(layout.before * times, layout.after)
        size = along(source, axis, len(size_of(node)))  # as often as there are rows
        return ALIKE if size == 1 else RowOrder(1, size) if self.same(each, size) else None

    def interleaved(self, node: fx.Node) -> RowOrder | None:
        source, repeats, dim = node.args[0], argument(node, "repeats", None), argument(node, "dim", None)
        layout, each = self.of(source), self.each(node)
        if not isinstance(source, fx.Node) or each is None or (isinstance(repeats, fx.Node) and is_tensor(repeats)):
            return None
        if layout == ALIKE:
            return ALIKE if dim is not None or len(size_of(source)) == 1 else None
        if layout is not None and dim is None:  # of all in one row
            around = self.outer(source)
            return RowOrder(around, self.quotient(each, around)) if self.quotient(each, around) is not None else None
        if layout is not None:
            times = self.quotient(each, layout.before * layout.after)
            return None if times is None else RowOrder(layout.before, layout.after * times)
        size = sympy.prod(size_of(source)) if dim is None else size_of(source)[dim]
        return ALIKE if size == 1 else RowOrder(size, 1) if self.same(each, size) else None

    def cut(self, node: fx.Node) -> RowOrder | None:
        """The order of a slice: some copies of all rows, or some of what each has. A table that is cut to the rows has
        none of its own."""
        source = node.args[0]
        layout, axis = self.of(source), self.axis(node)
        if not isinstance(source, fx.Node) or layout is None:
            return None
        whole, step = size_of(node)[axis] == size_of(source)[self.axis(source)], argument(node, "step", 1)
        if argument(node, "dim", 0) % len(size_of(node)) != axis or (whole and step == 1):
            return self.kept(node)
        if layout == ALIKE:
            return None if self.each(node) is None else ALIKE
        start = number(argument(node, "start", 0))
        if step != 1:
            within = self.quotient(layout.after, step) if isinstance(step, int) and start in range(step) else None
            return self.fitting(node, None if within is None else RowOrder(layout.before, within))
        return self.some(layout, (start, size_of(node)[axis]))

    def some(self, layout: RowOrder, sizes: Sequence[Any]) -> RowOrder | None:
        """The layout of a piece, the last of the sizes, where all of them take whole copies of the rows."""
        copies = [0 if size == 0 else self.times(size) for size in sizes]
        around = [None if each is None else self.quotient(each, layout.after) for each in copies]
        return None if None in around else RowOrder(around[-1], layout.after)

    def piece(self, node: fx.Node) -> RowOrder | None:
        """One of the tensors that an op gives."""
        op = node.args[0]
        if not isinstance(op, fx.Node) or name_of(op) not in PIECES:
            return self.kept(node)
        source = op.args[0]
        layout, axis = self.of(source), self.axis(node)
        if not isinstance(source, fx.Node) or layout is None or self.each(node) is None:
            return None
        if argument(op, "dim", 0) % len(size_of(node)) != axis or layout == ALIKE:
            return self.fitting(node, layout)
        if name_of(op) == "chunk":
            copies = self.quotient(layout.before, op.args[1])
            return None if copies is None else RowOrder(copies, layout.after)
        sizes = op.args[1] if isinstance(op.args[1], (list, tuple)) else [op.args[1]]
        return self.some(layout, [*map(number, sizes), size_of(node)[axis]])


RULES: Mapping[str, Callable[[RowOrders, fx.Node], RowOrder | None]] = {
    **dict.fromkeys(RESHAPING, RowOrders.reshaped),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"), RowOrders.made),
    **dict.fromkeys(("cat", "concat", "concatenate"), RowOrders.joined),
    **dict.fromkeys(("repeat", "tile"), RowOrders.repeated),
    **dict.fromkeys(("slice", "narrow"), RowOrders.cut),
    **dict.fromkeys(PICKING, RowOrders.indexed),
    **dict.fromkeys(("arange", "range"), RowOrders.numbered),
    "repeat_interleave": RowOrders.interleaved,
    "getitem": RowOrders.piece,
}


def before(node: fx.Node, axis: int | None) -> Any:
    return sympy.prod(size_of(node)[:axis])


def along(source: fx.Node, axis: int | None, count: int) -> Any:
    """The size of a dimension where it is one of so many, counted from the last."""
    assert axis is not None
    at = axis - count + len(size_of(source))
    return size_of(source)[at] if at >= 0 else 1


def number(arg: Any) -> Any:
    return size_of(arg) if isinstance(arg, fx.Node) and not is_tensor(arg) else arg or 0
