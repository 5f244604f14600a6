"""The shardings of sums, products and other ops that are linear in what is partial."""

from __future__ import annotations

from typing import Any

from torch import fx

from bppsa.fxpasses.partition.means.apart import OVER
from bppsa.fxpasses.partition.means.quantities import Quantities
from bppsa.fxpasses.partition.means.sharding import (
    BY_ROWS,
    Inseparable,
    Monomial,
    Partial,
    Replicated,
    Sharding,
    are_replicated,
    inseparable,
    is_rowwise,
)
from bppsa.fxpasses.partition.means.sizes import argument, is_tensor, name_of, size_of

VIEWS = ("view", "reshape", "_unsafe_view", "squeeze", "unsqueeze", "expand", "flatten", "select", "slice", "permute")
CASTS = ("to", "_to_copy", "type_as", "clone", "contiguous", "alias", "detach", "lift_fresh_copy", "transpose", "t")
ADDING = frozenset(["add", "add_", "sub", "sub_", "rsub", "stack", "cat"])
LINEAR = frozenset((*VIEWS, *CASTS, "neg", "positive", "sum", "mean"))


class LinearShardings(Quantities):
    """Finds the sharding of what a linear op gives by those of its operands. apart: whether terms have factors of their
    own."""

    def __init__(self, rows: frozenset[Any], apart: bool) -> None:
        super().__init__(rows)
        self.apart = apart
        self.terms: dict[int, Monomial] = {}  # their ways, by number

    def added(self, node: fx.Node) -> Sharding:
        """The sharding of a sum. What all micro-batches have counts by rows, whose shares add up to one."""
        shardings = [self.sharding_of(arg) for arg in addends(node)]
        mixed = inseparable(shardings)
        if mixed is not None or isinstance(argument(node, "alpha", 1), fx.Node):
            return mixed or Inseparable(node)
        if are_replicated(shardings):
            return Replicated()
        weights: set[Monomial] = set().union(
            *(sharding.weights for sharding in shardings if isinstance(sharding, Partial))
        )
        if any(isinstance(sharding, Partial) and sharding.rows for sharding in shardings):
            return Partial.of(True) if all(map(is_rowwise, shardings)) else Inseparable(node)
        if any(isinstance(sharding, Replicated) for sharding in shardings):
            weights.add(BY_ROWS)
        return Partial(frozenset(weights), False)

    def share(self, node: fx.Node) -> Sharding:
        """The sharding of a term that a factor of its own makes the batch's: micro-batches' add up to it."""
        sharding = self.sharding_of(node.args[0])
        if not self.apart:
            return sharding
        if isinstance(sharding, Replicated):
            sharding = Partial.of(False, BY_ROWS)
        if isinstance(sharding, Inseparable) or sharding.rows or len(sharding.weights) > 1:
            return Inseparable(node)
        number: Any = node.args[1]
        self.terms[number] = next(iter(sharding.weights))
        return Partial.of(False)

    def linear(self, node: fx.Node, rows: bool) -> Sharding:
        """The sharding of a linear op: it commutes with the sum over micro-batches."""
        source = node.all_input_nodes[0]
        sharding, name = self.shardings[source], name_of(node)
        if name not in LINEAR or not isinstance(sharding, Partial):
            return Inseparable(node)
        if rows or not sharding.rows:
            return Partial(sharding.weights, rows)
        if name == "sum":
            return Partial(sharding.weights, False)
        if name == "mean":
            return self.mean(node, source, sharding)
        return Inseparable(node)

    def mean(self, node: fx.Node, source: fx.Node, sharding: Partial) -> Sharding:
        count = self.count(size_of(source))
        return Inseparable(node) if count is None else Partial(sharding.over(count, 1), False)

    def product(self, node: fx.Node, rows: bool) -> Sharding:
        a, b = (self.sharding_of(arg) for arg in node.args[:2])
        divides = name_of(node) in OVER
        if argument(node, "rounding_mode", None) is not None:
            return Inseparable(node)
        if isinstance(b, Replicated) and self.quantity(node.args[1]) is None:
            return a
        if not rows:
            if self.quantity(node.args[0]) is not None and not divides:
                a, b, factor = b, a, node.args[0]
            else:
                factor = node.args[1]
            return self.scaled(node, a, factor, divides)
        shardings = (a, b)
        if (mixed := inseparable(shardings)) is not None:
            return mixed
        scalars = [
            arg
            for arg, of in zip(node.args[:2], shardings, strict=True)
            if (not of.rows if isinstance(of, Partial) else self.quantity(arg) is not None)
        ]
        if scalars:
            other = b if scalars[0] is node.args[0] else a
            if divides and scalars[0] is node.args[0]:
                return Inseparable(node)
            scaled = self.scaled(node, other, scalars[0], divides)
            return Partial(scaled.weights, True) if isinstance(scaled, Partial) else scaled
        if not is_rowwise(b):
            return b if is_rowwise(a) and not divides else Inseparable(node)
        return Partial.of(True) if isinstance(a, Replicated) else a

    def scaled(self, node: fx.Node, sharding: Sharding, factor: Any, divides: bool) -> Sharding:
        """The sharding of a value multiplied with a number, or divided by it."""
        quantity = self.quantity(factor)
        if isinstance(sharding, Inseparable):
            return sharding
        of_factor = self.sharding_of(factor)
        if quantity is None and isinstance(of_factor, Replicated):
            return sharding
        if isinstance(sharding, Replicated) and not divides:  # a number times what is partial
            return of_factor
        if quantity is None or not isinstance(sharding, Partial):
            return Inseparable(node)
        return Partial(sharding.over(quantity, 1 if divides else -1), sharding.rows)

    def sharding_of(self, arg: Any) -> Sharding:
        if isinstance(arg, fx.Node):
            if is_tensor(arg) or not self.has_rows(size_of(arg)):
                return self.shardings[arg]
            return Inseparable(arg) if self.quantity(arg) is None else Partial.of(False)  # micro-batches' rows add up
        return Replicated()


def addends(node: fx.Node) -> list[Any]:
    """What a node adds up, but for zeros, which are nothing to a sum."""
    given = node.args[0] if isinstance(node.args[0], (list, tuple)) else node.args[:2]
    return [arg for arg in given if isinstance(arg, fx.Node) or arg != 0]
