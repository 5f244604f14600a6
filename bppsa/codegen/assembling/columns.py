"""Which expressions are one and the same but for the column they begin at: slices of a value, each written out."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from bppsa.codegen.language.expr import Access, Dot, Expr, topological


@dataclass
class ValueNumbering:
    """Numbers expressions: equal ones, wherever they begin, get one number."""

    known: dict[Expr, tuple[int, int | None]] = field(default_factory=dict)
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def of(self, expr: Expr) -> tuple[int, int | None]:
        """The number, and the column at which it begins: None for what is the same in every column."""
        for node in topological((expr,), self.known) if expr not in self.known else ():
            self.known[node] = self.inner(node) if node.args else self.leaf(node)
        return self.known[expr]

    def leaf(self, node: Expr) -> tuple[int, int | None]:
        payload = node.payload
        if isinstance(payload, Dot) or (isinstance(payload, Access) and not payload.broadcast):
            return self.number((node.op, replace(payload, column=0))), payload.column
        return self.number(node), None

    def inner(self, node: Expr) -> tuple[int, int | None]:
        parts = [self.known[arg] for arg in node.args]
        start = next((column for _, column in parts if column is not None), None)
        apart = tuple((number, None if column is None else column - (start or 0)) for number, column in parts)
        return self.number((node.op, apart)), start

    def number(self, key: Hashable) -> int:
        return self.numbers.setdefault(key, len(self.numbers))
