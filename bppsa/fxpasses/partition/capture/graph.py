"""What tracing gives: a graph from arguments to outputs, and how these make up what the model returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx
from torch.utils._pytree import TreeSpec, tree_unflatten

from bppsa.fxpasses.partition.call.transient import Attribute
from bppsa.fxpasses.partition.capture.since import LookedUp
from bppsa.fxpasses.partition.capture.sizes import Sizes


@dataclass(frozen=True)
class Output:
    number: int


@dataclass(frozen=True)
class CapturedGraph:
    """graph: a placeholder for each argument; the output is a tuple of nodes. Nodes have Facts in meta["facts"].

    leaves, spec: of what the model returns, with an Output in the place of each output. sizes: of the calls for which
    it holds. looked_up: what it may have been made from. transient: attributes that each call sets for itself.
    """

    graph: fx.Graph
    constants: dict[str, Tensor]  # of which get_attr nodes read
    leaves: tuple[Any, ...]
    spec: TreeSpec
    examples: tuple[Any, ...]  # of the outputs

    sizes: Sizes
    looked_up: LookedUp = field(default_factory=LookedUp)
    transient: tuple[Attribute, ...] = ()

    def assemble(self, outputs: Sequence[Any]) -> Any:
        leaves = [outputs[leaf.number] if isinstance(leaf, Output) else leaf for leaf in self.leaves]
        return tree_unflatten(leaves, self.spec)
