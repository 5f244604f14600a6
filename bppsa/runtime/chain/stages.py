"""J^T of a stage and of several in a row: applied op by op, or formed as one operator where a scan multiplies it."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor, fx

from bppsa.common.chain import ChainStage
from bppsa.sparsity.algebra import add, compose
from bppsa.sparsity.links import Factors, NodeMasks, links_of
from bppsa.sparsity.operators.transposed import TransposedJacobian


class Element(Protocol):
    """What a scan over a feed-forward chain combines."""

    @abstractmethod
    def mv(self, g: Tensor) -> Tensor:
        """J^T g for every sample: [B, *m] to [B, *n]."""

    @abstractmethod
    def formed(self) -> TransposedJacobian:
        """J^T as one operator, formed once."""


class StageJacobian:
    """J^T of a stage from the values of its nodes: one walk from its end to its start, over cotangents or operators
    (BPPSA equation 3). Series compose, branches add. masks: of the weights that were pruned."""

    def __init__(self, stage: ChainStage, value: Callable[[fx.Node], Any], masks: NodeMasks | None = None) -> None:
        self.stage, self.value, self.masks = stage, value, masks or {}

    @functools.cached_property
    def links(self) -> list[tuple[fx.Node, list[Factors]]]:
        inside = {self.stage.start, *self.stage.nodes}
        single = [node for node in reversed(self.stage.nodes) if isinstance(node.meta["val"], Tensor)]
        return [(node, links_of(node, inside, self.value, self.masks)) for node in single]

    def mv(self, g: Tensor) -> Tensor:
        return self.walk(g, lambda factor, g: factor.mv(g), lambda a, b: a + b)

    def formed(self) -> TransposedJacobian:
        return self.operator

    @functools.cached_property
    def operator(self) -> TransposedJacobian:
        return self.walk(None, lambda factor, after: factor if after is None else compose(factor, after), add)

    def walk(self, end: Any, apply: Callable[[Any, Any], Any], plus: Callable[[Any, Any], Any]) -> Any:
        reached = {self.stage.end: end}
        for node, links in self.links:
            if node not in reached:
                continue
            after = reached.pop(node)
            for argument, factors in links:
                term = after
                for factor in reversed(factors):
                    term = apply(factor, term)
                reached[argument] = plus(reached[argument], term) if argument in reached else term
        return reached[self.stage.start]


class ElementSpan:
    """Neighbouring elements, the one nearest to the output first."""

    def __init__(self, elements: Sequence[Element]) -> None:
        self.elements = elements

    def mv(self, g: Tensor) -> Tensor:
        return self.formed().mv(g)

    def formed(self) -> TransposedJacobian:
        return self.operator

    @functools.cached_property
    def operator(self) -> TransposedJacobian:
        return functools.reduce(
            lambda after, e: compose(e.formed(), after), self.elements[1:], self.elements[0].formed()
        )
