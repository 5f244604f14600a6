"""The graph that gives a loss, and what is known of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from bppsa.common.graph import ancestors
from bppsa.fxpasses.partition.call.arguments import leaf_of
from bppsa.fxpasses.partition.capture.graph import CapturedGraph
from bppsa.fxpasses.partition.losses.terms import adds_terms, separate
from bppsa.fxpasses.partition.means.reading import LossReading
from bppsa.fxpasses.partition.means.sizes import rows_at
from bppsa.fxpasses.partition.means.trials import Trials


@dataclass(frozen=True)
class LossGraph:
    """arguments: of the example; by_rows: of their leaves, whether they have rows. loss: takes it from what the model
    returns. made: how many of the arguments, the first ones, a model has made, so that they are not known before it
    runs."""

    model: nn.Module
    graph: CapturedGraph
    arguments: Sequence[Any]
    by_rows: Sequence[bool]
    loss: Callable[[Any], Any]
    made: int = 0

    @property
    def number(self) -> int | None:
        """Which of the outputs is the loss, a tensor []; None where none is."""
        leaf, examples = self.loss(self.graph.assemble(self.graph.examples)), self.graph.examples
        known = isinstance(leaf, Tensor) and not leaf.dim()
        return next((i for i, x in enumerate(examples) if x is leaf), None) if known else None

    @property
    def end(self) -> fx.Node | None:
        outputs: Any = self.graph.graph.output_node().args[0]
        return None if self.number is None else outputs[self.number]

    @property
    def rows(self) -> frozenset[Any]:
        """Symbols of the number of rows."""
        pairs = zip(self.graph.sizes.shapes, self.by_rows, strict=True)
        return frozenset(s for shape, yes in pairs if shape and yes for s in getattr(shape[0], "free_symbols", ()))

    def read(self, apart: bool = False) -> LossReading:
        """The sharding of each node that computes something. apart: whether terms have factors of their own."""
        parameters = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        reading = LossReading(
            self.rows, lambda path: path not in parameters, trials_of(self), norms=self.made == 0, apart=apart
        )
        give(reading, self)
        for node in self.graph.graph.nodes:
            ends = node.op in ("output", "placeholder") or node.target is self.graph.sizes
            if not ends and node not in reading.shardings:
                reading.read(node)
        return reading

    def numbers(self) -> set[fx.Node]:
        """What makes the loss of values of rows: counts, means of terms, and what is made of these."""
        rows = self.rows
        return set() if self.end is None else ancestors([self.end], lambda node: not rows_at(node, rows))

    def separate_terms(self) -> bool:
        """Gives the terms of the loss factors of their own where they count in unlike ways; says whether they do."""
        end, output = self.end, self.graph.graph.output_node()
        if end is None or not self.rows or not adds_terms(self.numbers()):
            return False
        found = separate(self.graph.graph, self.read(), end)
        if found is not None:
            output.args = (tuple(found if i == self.number else x for i, x in enumerate(output.args[0])),)
        return found is not None


def trials_of(of: LossGraph) -> Trials:
    leaves = tree_leaves(list(of.arguments))
    pairs = ((shape, x.shape) for shape, x in zip(of.graph.sizes.shapes, leaves, strict=True) if shape is not None)
    known = {symbol: size for shape, sizes in pairs for symbol, size in zip(shape, sizes, strict=True)}
    device = next((x.device for x in leaves if isinstance(x, Tensor)), torch.device("cpu"))
    return Trials(of.model, of.graph.constants, known, device)


def give(reading: LossReading, of: LossGraph) -> None:
    """The arguments and, of those that are containers, their leaves."""
    leaves = iter(zip(of.graph.sizes.shapes, of.by_rows, strict=True))
    given = of.graph.graph.find_nodes(op="placeholder")
    for number, (node, example) in enumerate(zip(given, of.arguments, strict=True)):
        parts = [(x, *next(leaves)) for x in tree_leaves(example)]
        users = [user for user in node.users if user.target is leaf_of]
        whole = [(node, parts[0])] if isinstance(example, Tensor) else [(user, parts[user.args[1]]) for user in users]
        reading.given(node, False, number >= of.made)
        for found, (x, shape, has_rows) in whole:
            found.meta["made"] = x.dtype, shape
            reading.given(found, has_rows, number >= of.made)
