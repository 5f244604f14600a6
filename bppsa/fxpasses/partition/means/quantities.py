"""The numbers by which a loss may be divided: of rows, of what a mask selects, and what arguments alone decide."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import fx

from bppsa.common.graph import nodes_in
from bppsa.fxpasses.partition.means.sharding import (
    ROWS,
    Inseparable,
    Partial,
    Quantity,
    Replicated,
    SelectedCount,
    Sharding,
)
from bppsa.fxpasses.partition.means.sizes import (
    dtype,
    is_tensor,
    name_of,
    number_without_casts,
    size_of,
    symbols,
)

MASKED = frozenset(("index", "masked_select"))
ITEM = frozenset(("item", "_local_scalar_dense"))


class Quantities:
    """What is known of the sizes and numbers of a graph while it is read. rows: symbols of the number of rows."""

    def __init__(self, rows: frozenset[Any]) -> None:
        self.of_rows, self.rows = rows, set(rows)
        self.known: set[Any] = set()  # symbols met
        self.shardings: dict[fx.Node, Sharding] = {}
        self.data: set[fx.Node] = set()  # what arguments and constants alone decide
        self.selected: dict[Any, Quantity] = {}  # the size of what a mask selects -> that number

    def adds_up(self, quantity: Quantity) -> bool:
        """Whether micro-batches' make the batch's."""
        return not isinstance(quantity, fx.Node) or self.shardings[quantity] == Partial.of(False)

    def count(self, shape: tuple[Any, ...]) -> Quantity | None:
        """How many elements there are, up to a factor that all micro-batches have."""
        along = [size for size in shape if self.has_rows(size)]
        return self.number(along[0]) if len(along) == 1 else None

    def number(self, size: Any) -> Quantity | None:
        """What a size grows with in proportion."""
        free = symbols(size) & self.rows
        if len(free) != 1:
            return None
        (symbol,) = free
        if symbol in sympy.expand(number_without_casts(size) / symbol).free_symbols:
            return None
        return ROWS if symbol in self.of_rows else self.selected.get(symbol)

    def quantity(self, arg: Any) -> Quantity | None:
        """A number that differs between micro-batches, and that arguments alone decide."""
        if not isinstance(arg, fx.Node):
            return None
        if name_of(arg) in ITEM:
            return self.quantity(arg.args[0])
        if not is_tensor(arg):
            return self.number(size_of(arg))
        is_one = all(size == 1 for size in size_of(arg))  # and not a number for each column
        return arg if arg in self.data and is_one and not isinstance(self.shardings[arg], Replicated) else None

    def has_rows(self, size: Any) -> bool:
        return bool(symbols(size) & self.rows)

    def note_selected(self, node: fx.Node) -> None:
        """A size that comes about here, as of x[mask], is one of rows."""
        new = symbols(size_of(node)) - self.known
        self.known |= new
        from_rows = any(isinstance(self.shardings[source], (Partial, Inseparable)) for source in node.all_input_nodes)
        if not new or not from_rows or name_of(node) in ("arange", "zeros", "ones", "full", "empty"):
            return
        self.rows |= new
        masks = nodes_in(node.args[1:])
        if name_of(node) in MASKED and len(masks) == 1 and masks[0] in self.data and dtype(masks[0]) is torch.bool:
            self.selected |= dict.fromkeys(new, SelectedCount(masks[0]))
