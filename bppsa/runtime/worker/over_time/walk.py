"""A model's graph on one chunk of time, stopped at each call of a recurrent module, and the way back.

What a recurrent layer gives is a leaf of autograd. So the pieces between layers are graphs of their own, and gradients
go through one piece at a time, from the last to the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from bppsa.common.graph import tensors_in
from bppsa.common.leaves import wants_gradient
from bppsa.runtime.recurrent.scan.extent import Given


class ChunkWalk(fx.Interpreter):
    """arguments: the model's, cut to the chunk; weights: by their names, those that gradients are asked for."""

    def __init__(
        self, graph: fx.GraphModule, arguments: Sequence[Any], weights: Mapping[str, Tensor], *, gradients: bool
    ) -> None:
        super().__init__(graph)
        self.weights, self.gradients = weights, gradients
        self.rest: Iterator[Any] = iter(graph.graph.nodes)
        self.at: Any = None
        self.leaves: list[Tensor] = []
        self.found: dict[int, Tensor] = {}  # what has arrived, by the leaf's id
        self.of_weights: dict[str, Tensor] = {}
        self.arguments = tree_map(
            lambda x: self.leaf(x.detach()) if wants_gradient(x) and gradients else x, list(arguments)
        )
        self.args_iter = iter(self.arguments)

    def until(self, call: str) -> Any:
        """Goes on to the node of this name, and gives its (args, kwargs)."""
        for node in self.rest:
            if node.name == call:
                self.at = node
                return self.fetch_args_kwargs_from_env(node)
            self.put(node, self.run_node(node))
        raise AssertionError(call)

    def go_on(self, value: Any) -> None:
        """Goes on with what the call at which it stands gives."""
        self.put(self.at, value)

    def end(self) -> tuple[Any, ...]:
        """Goes on to the end: what the graph returns."""
        value: Any = ()
        for node in self.rest:
            value = self.run_node(node)
            self.put(node, value)
        self.env.clear()
        return value

    def put(self, node: fx.Node, value: Any) -> None:
        self.env[node] = value
        for used in self.user_to_last_uses.get(node, ()):
            del self.env[used]

    def taken(self) -> dict[str, Tensor]:
        """What weights have received since it was asked last."""
        found, self.of_weights = self.of_weights, {}
        return found

    def leaf(self, tensor: Tensor) -> Tensor:
        if self.gradients:
            self.leaves.append(tensor.requires_grad_())
        return tensor

    def gradient(self, leaf: Tensor) -> Tensor | None:
        return self.found.get(id(leaf))

    def of_argument(self, v: int) -> list[Tensor | None]:
        """The gradients of its tensors."""
        return [self.gradient(x) for x in tensors_in(self.arguments[v])]

    def forget(self, leaves: Iterable[Tensor]) -> None:
        """Nothing arrives there any more."""
        gone = set(map(id, leaves))
        self.leaves = [leaf for leaf in self.leaves if id(leaf) not in gone]
        for key in gone:
            self.found.pop(key, None)

    def back(self, tensors: Given, cotangents: Given) -> None:
        """Goes back from tensors, through the piece that made them, to the leaves and weights that it read."""
        ends = [(t, g) for t, g in zip(tensors, cotangents, strict=True) if g is not None and wants_gradient(t)]
        if not ends:
            return
        outs, grads = zip(*((t, g.to(t.dtype)) for t, g in ends), strict=True)
        wanted = [*self.leaves, *self.weights.values()]
        # pieces share what several layers read, so a graph lives until its tensors are dropped
        found = torch.autograd.grad(outs, wanted, grads, retain_graph=True, allow_unused=True)
        add(self.found, map(id, self.leaves), found[: len(self.leaves)])
        add(self.of_weights, self.weights, found[len(self.leaves) :])


def add(totals: dict[Any, Tensor], keys: Iterable[Any], parts: Given) -> None:
    for key, part in zip(keys, parts, strict=True):
        if part is not None:
            totals[key] = totals[key] + part if key in totals else part
