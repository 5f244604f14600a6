"""Sort stores into the groups of a step: what one loop over rows and columns can compute together.

A store waits for the buffers it reads that the step itself fills: its level is one more than theirs. Stores of one
level and width make a group. Work of a lower level that a store needs again is taken from memory, not done twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bppsa.codegen.ir import Access, Buffer, Dot, Expr, Group, Kind, Op, Reduce, Store, load, rewrite, topological
from bppsa.codegen.lower import Root

EXPENSIVE = {Op.DOT, Op.EXP, Op.LOG, Op.TANH, Op.SIGMOID, Op.DIV, Op.SQRT}


@dataclass
class Grouping:
    """Roots sorted into groups. A level is how many groups must have stored before: what is of one level and width is
    one group; what a later level would compute again, at a price, goes through scratch."""

    buffers: dict[str, Buffer]
    scratch_widths: list[int]
    levels: dict[Expr, int] = field(default_factory=dict)
    filled: dict[tuple[str, bool], list[tuple[int, int, int]]] = field(default_factory=dict)  # -> (start, end, level)
    known: dict[tuple[Expr, int], Access] = field(default_factory=dict)
    stores: dict[tuple[int, int], list[Store]] = field(default_factory=dict)

    def run(self, roots: Sequence[Root]) -> tuple[Group, ...]:
        """`roots` come in an order in which what a store reads within the step is stored before it."""
        for root in roots:
            self.add(root)
        return tuple(
            Group(width, tuple(stores)) for (_, width), stores in sorted(self.stores.items(), key=lambda kv: kv[0][0])
        )

    def add(self, root: Root) -> None:
        level = self.level(root.value)
        value = self.without_rework(root.value, root.width, level)
        self.stores.setdefault((level, root.width), []).append(Store(root.target, value, root.reduce))
        width = 1 if root.reduce is Reduce.ROWS else root.width
        target = root.target
        if self.kind(target) is Kind.RUNNING:  # a load there reads what the previous step stored
            return
        span = (target.column, target.column + width, level)
        self.filled.setdefault((target.buffer, target.after), []).append(span)
        if root.reduce is Reduce.NONE:
            self.known.setdefault((root.value, root.width), target)

    def kind(self, access: Access) -> Kind:
        return self.buffers[access.buffer].kind if access.buffer in self.buffers else Kind.SCRATCH

    def level(self, expr: Expr) -> int:
        for node in topological((expr,)):
            if node not in self.levels:
                self.levels[node] = (
                    self.level_of_leaf(node) if not node.args else max(self.levels[a] for a in node.args)
                )
        return self.levels[expr]

    def level_of_leaf(self, node: Expr) -> int:
        if isinstance(node.payload, Access):
            return self.ready(node.payload, 1 if node.payload.broadcast else None)
        if isinstance(node.payload, Dot):
            return self.ready(node.payload.source, self.buffers[node.payload.weight].depth)
        return 0

    def ready(self, access: Access, width: int | None) -> int:
        """The first level at which the columns read may be read: after every store of this step into them.

        Without a width the whole buffer right of the column counts, which is never too early."""
        end = float("inf") if width is None else access.column + width
        spans = self.filled.get((access.buffer, access.after), [])
        return 1 + max((level for low, high, level in spans if low < end and high > access.column), default=-1)

    def without_rework(self, root: Expr, width: int, level: int) -> Expr:
        def cut(node: Expr) -> Expr | None:
            if self.levels[node] >= level or not expensive(node):
                return None
            return load(self.in_memory(node, width))

        return rewrite(root, cut)

    def in_memory(self, node: Expr, width: int) -> Access:
        uniform = is_uniform(node)
        width = 1 if uniform else width
        if (node, width) not in self.known:
            self.scratch_widths.append(width)
            self.add(Root(Access(f"scratch{len(self.scratch_widths) - 1}", broadcast=uniform), node, width))
        return replace(self.known[node, width], broadcast=uniform)


def expensive(expr: Expr) -> bool:
    return any(node.op in EXPENSIVE for node in topological((expr,)))


def is_uniform(expr: Expr) -> bool:
    """Whether the expression is the same for every column."""
    payloads = [node.payload for node in topological((expr,)) if not node.args]
    return all(isinstance(p, float) or (isinstance(p, Access) and p.broadcast) for p in payloads)
