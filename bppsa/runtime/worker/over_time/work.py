"""The jobs of the distributed scan: a recurrent model whose time axis is cut into K chunks (schedule.zoo.time_chunks).

Stage l * K + k is recurrent layer l on chunk k. F runs what comes before the layer, from the layer below on, and the
layer, from the carry that chunk k - 1 left; the last layer's F goes on to the end of the model and its loss, whose
cotangents it takes at once. R is the layer's summary, the other jobs of the scan combine summaries, and B is the
backward of the layer, from the cotangent that enters at the chunk's end, and of what comes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bppsa.runtime.extent import Given
from bppsa.runtime.sweep import Needs, Sweep
from bppsa.runtime.worker.over_time.layer import Ran, combined, run
from bppsa.runtime.worker.over_time.module import ModuleCall
from bppsa.runtime.worker.over_time.walk import Walk
from bppsa.schedule.messages import Item
from bppsa.schedule.program import Action
from bppsa.stages import OverTime

Job = tuple[int, int, str]
Inputs = Callable[[int, int, str], Sequence[Job]]
Loss = Callable[[Any, int, int], "Tensor | None"]
Sweeps = Callable[[nn.RNNBase, int, Tensor], Sweep]  # of a module's layer, for its input [T, B, I]


@dataclass(frozen=True)
class TimeCall:
    """One step, or one call of the model. arguments: of each micro-batch, the model's.

    loss(output, b, k): what a chunk of a micro-batch adds to the whole batch's loss, None for nothing. Without a loss
    the model is called as a module, and `cotangents` come later.
    """

    arguments: Sequence[Sequence[Any]]
    loss: Loss | None = None
    gradients: bool = True
    keeps_outputs: bool = True


@dataclass
class TimeResults:
    """What jobs leave for the end of the step, by (b, k): micro-batch and chunk."""

    losses: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    outputs: dict[tuple[int, int], list[Any]] = field(default_factory=dict)  # leaves of what the graph returns
    weights: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict)  # gradients, by the model's names
    arguments: dict[tuple[int, int], list[Tensor | None]] = field(default_factory=dict)  # gradients, by leaf


@dataclass(frozen=True)
class Called:
    """A layer's call on one chunk. given: x, the weights and the carries before it, with their autograd graphs; y,
    [T, B, n], and finals, [B, n] each, are leaves."""

    ran: Ran
    given: Given
    y: Tensor
    finals: Sequence[Tensor]


@dataclass
class Chunk:
    """One chunk of one micro-batch, from its first F to its last B."""

    walk: Walk
    module: ModuleCall | None = None  # the call whose layers run
    called: dict[int, Called] = field(default_factory=dict)  # of each layer
    end: list[Any] | None = None  # leaves of the model's output, where the backward has still to begin


class TimeChunks:
    """The work of the workers of one process. inputs: the schedule's."""

    def __init__(self, model: OverTime, K: int, inputs: Inputs, sweeps: Sweeps, call: TimeCall) -> None:
        self.model, self.K, self.inputs, self.sweeps, self.call = model, K, inputs, sweeps, call
        self.cotangents: Sequence[Given] = ()  # of each micro-batch, by leaf of the model's output
        self.results = TimeResults()
        self.chunks: dict[tuple[int, int], Chunk] = {}  # by (b, k)
        self.used: dict[int, Sweep] = {}  # by each layer
        self.weights = {
            model.names[name]: weight for name, weight in model.graph.named_parameters() if weight.requires_grad
        }

    def reads(self, action: Action) -> list[Item]:
        """What F and B leave for other jobs of their own chunk stays with the worker, and is no item."""
        k = action.stage % self.K
        return [Item(d, s, b) for s, b, d in self.inputs(*action) if s % self.K != k or d not in "FB"]

    def writes(self, action: Action) -> list[Item]:
        return [] if action.kind == "B" else [Item(action.kind, action.stage, action.batch)]

    def run(self, action: Action, inputs: Sequence[Any]) -> Sequence[Any]:
        (layer, k), b = divmod(action.stage, self.K), action.batch
        with torch.set_grad_enabled(self.call.gradients):
            if action.kind == "F":
                return [self.forward(layer, k, b, *inputs)]
            if action.kind == "R":
                return [self.summary(layer, k, b)]
            if action.kind == "B":
                self.backward(layer, k, b, *inputs)
                return []
            return [combined(inputs, self.used[layer])]

    def forward(self, layer: int, k: int, b: int, carries: Given | None = None) -> tuple[Tensor, ...]:
        """From the carry before the chunk to that after it, [B, n] each."""
        node, number, path = self.model.layers[layer]
        chunk = self.begun(k, b) if layer == 0 else self.chunks[b, k]
        if number == 0:
            args, kwargs = chunk.walk.until(node)
            chunk.module = ModuleCall(self.model.graph.get_submodule(path), *args, **kwargs)
        module = chunk.module
        assert module is not None
        called = self.called(chunk, module, number, module.initial(number) if carries is None else carries)
        module.advance(called.y, called.finals)
        if number == module.module.num_layers - 1:
            chunk.walk.put(node, module.result())
            chunk.module = None
        if self.call.gradients:
            chunk.called[layer] = called
            self.used[layer] = called.ran.sweep
            if self.K > 2:
                called.ran.sweep.reduction()  # is built where an error can be met
        if layer == len(self.model) - 1:
            self.end(chunk, k, b)
        return tuple(final.detach() for final in called.finals)

    def begun(self, k: int, b: int) -> Chunk:
        leaves, spec = tree_flatten(list(self.call.arguments[b]))
        cut = [at_chunk(x, of.time, k, self.K) for x, of in zip(leaves, self.model.arguments, strict=True)]
        walk = Walk(self.model.graph, tree_unflatten(cut, spec), self.weights, gradients=self.call.gradients)
        self.chunks[b, k] = chunk = Chunk(walk)
        return chunk

    def called(self, chunk: Chunk, module: ModuleCall, number: int, carries: Given) -> Called:
        x, weights = module.x, module.weights(number)
        sweep = self.sweeps(module.module, number, x)
        source, *params = (t.detach().to(sweep.dtype) for t in (x, *weights))
        states = [None if t is None else t.detach().to(sweep.dtype) for t in carries]
        ran = run(sweep, source, states, params, save=self.call.gradients)
        made = (ran.passed.outputs[0], *ran.passed.finals)
        y, *finals = (chunk.walk.leaf(tensor.detach().to(x.dtype)) for tensor in made)
        return Called(ran, [x, *weights, *carries], y, finals)

    def end(self, chunk: Chunk, k: int, b: int) -> None:
        """Of the model."""
        made = chunk.walk.until(None)
        if self.call.loss is not None:
            loss = self.call.loss(self.model.assemble(made), b, k)
            if loss is not None:
                self.results.losses[b, k] = loss.detach()
                if self.call.gradients:
                    chunk.walk.back([loss], [torch.ones_like(loss)])
        elif self.call.gradients:
            chunk.end = tree_leaves(made)
        if self.call.keeps_outputs:
            self.results.outputs[b, k] = [x.detach() if isinstance(x, Tensor) else x for x in tree_leaves(made)]
        if not self.call.gradients:
            del self.chunks[b, k]

    def summary(self, layer: int, k: int, b: int) -> Any:
        chunk, last = self.chunks[b, k], k == self.K - 1
        return chunk.called[layer].ran.summary(*self.arrived(chunk, layer, k, b), last=last)

    def backward(self, layer: int, k: int, b: int, entering: Tensor | None = None) -> None:
        chunk = self.chunks[b, k]
        arrived = self.arrived(chunk, layer, k, b)
        called = chunk.called.pop(layer)
        chunk.walk.forget([called.y, *called.finals])
        x, *weights = called.given[: 1 + len(called.ran.weights)]
        needs = Needs([x.requires_grad], [weight.requires_grad for weight in weights])
        found = called.ran.backward(entering, *arrived, needs)
        chunk.walk.back(called.given, [*found.sources, *found.params, *found.carries])
        if layer == 0:
            self.results.weights[b, k] = chunk.walk.of_weights
            self.results.arguments[b, k] = [chunk.walk.gradient(x) for x in chunk.walk.arguments]
            del self.chunks[b, k]

    def arrived(self, chunk: Chunk, layer: int, k: int, b: int) -> tuple[Tensor | None, list[Tensor | None]]:
        """The cotangents of a layer's y, [T, B, n], and of its final carries, [B, n] each, from the loss and from the
        layers above."""
        if chunk.end is not None:
            whole = zip(self.cotangents[b], self.model.outputs, strict=True)
            seen = [None if of.time is None and k < self.K - 1 else at_chunk(g, of.time, k, self.K) for g, of in whole]
            chunk.walk.back(chunk.end, seen)
            chunk.end = None
        called = chunk.called[layer]
        found = [chunk.walk.gradient(leaf) for leaf in (called.y, *called.finals)]
        g_y, *g_finals = (None if g is None else g.to(called.ran.sweep.dtype) for g in found)
        return g_y, g_finals


def at_chunk(x: Any, axis: int | None, k: int, K: int) -> Any:
    """Chunk k of K of a tensor; all of what has no axis of time."""
    return x if axis is None or x is None else x.tensor_split(K, axis)[k]
