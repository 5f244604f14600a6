"""The jobs of the distributed scan: a recurrent model whose time axis is cut into K chunks (schedule.zoo.time_chunks).

Stage l * K + k is recurrent layer l on chunk k. F runs what comes before the layer, from the layer below on, and the
layer, from the carry that chunk k - 1 left; the last layer's F goes on to the end of the model and its loss, whose
cotangents it takes at once. R is the layer's summary, the other jobs of the scan combine summaries, and B is the
backward of the layer, from the cotangent that enters at the chunk's end, and of what comes before it.

Losses, outputs and gradients of arguments are left for part b * K + k: chunk k of micro-batch b.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from bppsa.runtime.extent import Given
from bppsa.runtime.sweep import Needs, Sweep
from bppsa.runtime.worker.draws import drawing_from
from bppsa.runtime.worker.gradients import Sums
from bppsa.runtime.worker.over_time.layer import Ran, combined, run
from bppsa.runtime.worker.over_time.module import ModuleCall
from bppsa.runtime.worker.over_time.walk import Walk
from bppsa.runtime.worker.pipeline import Call, without_graph
from bppsa.runtime.worker.results import Results
from bppsa.runtime.worker.shell import Shell
from bppsa.schedule.messages import Item
from bppsa.schedule.program import Action
from bppsa.stages import OverTime

Inputs = Callable[[int, int, str], Any]  # a schedule's
Sweeps = Callable[[nn.RNNBase, int, Tensor], Sweep]  # of a module's layer, for its input [T, B, I]


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
    """The work of one worker, which has all layers of its chunks."""

    def __init__(
        self,
        model: OverTime,
        call: Call,
        shells: Mapping[int, Shell],
        results: Results,
        sums: Sums,
        ended: Callable[[int], None],
        sweeps: Sweeps,
    ) -> None:
        """ended: called with a stage when the worker has its last gradient of the stage's weights."""
        self.model, self.call, self.results, self.sums, self.ended, self.sweeps = (
            model,
            call,
            results,
            sums,
            ended,
            sweeps,
        )
        self.K = model.chunks
        self.gradients = call.modes.grad and not call.modes.inference
        chunks: list[Chunk] = list(results.kept.values())
        self.used = {layer: called.ran.sweep for chunk in chunks for layer, called in chunk.called.items()}
        shell = shells[min(shells)]
        self.graph: Any = shell.module
        weights = {name: getattr(module, attribute) for name, module, attribute in shell.slots}
        self.weights = {name: weight for name, weight in weights.items() if weight.requires_grad}

    def run(self, action: Action, inputs: Sequence[Any]) -> Sequence[Any]:
        (layer, k), b = divmod(action.stage, self.K), action.batch
        with self.call.modes.entered():
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
        node, number, path, op = self.model.layers[layer]
        chunk = self.begun(k, b) if layer == 0 else self.chunk(k, b)
        with drawing_from(replace(self.call.seeds[b], batch=self.part(k, b))):
            if number == 0:
                args, kwargs = chunk.walk.until(node)
                chunk.module = ModuleCall(self.graph.get_submodule(path), *args, **kwargs)
            module = chunk.module
            assert module is not None
            called = self.called(chunk, module, number, module.initial(number) if carries is None else carries)
            module.advance(called.y, called.finals, op)
            if module.ended:
                chunk.walk.go_on(module.result())
                chunk.module = None
            if self.gradients:
                self.results.hold(+1)
                chunk.called[layer], self.used[layer] = called, called.ran.sweep
            if layer == len(self.model.layers) - 1:
                self.end(chunk, k, b)
        return tuple(final.detach() for final in called.finals)

    def begun(self, k: int, b: int) -> Chunk:
        leaves, spec = tree_flatten(list(self.call.arguments[b]))
        cut = [at_chunk(x, of.time, k, self.K) for x, of in zip(leaves, self.model.arguments_axes, strict=True)]
        walk = Walk(self.graph, tree_unflatten(cut, spec), self.weights, gradients=self.gradients)
        self.results.kept[k, b] = chunk = Chunk(walk)
        return chunk

    def chunk(self, k: int, b: int) -> Chunk:
        return self.results.kept[k, b]

    def part(self, k: int, b: int) -> int:
        return b * self.K + k

    def called(self, chunk: Chunk, module: ModuleCall, number: int, carries: Given) -> Called:
        x, weights = module.x, module.weights(number)
        sweep = self.sweeps(module.module, number, x)
        if self.gradients and self.K > 2:
            sweep.reduction()  # is built where an error can be met
        source, *params = (t.detach().to(sweep.dtype) for t in (x, *weights))
        states = [None if t is None else t.detach().to(sweep.dtype) for t in carries]
        ran = run(sweep, source, states, params, save=self.gradients)
        made = (ran.passed.outputs[0], *ran.passed.finals)
        y, *finals = (chunk.walk.leaf(tensor.detach().to(x.dtype)) for tensor in made)
        return Called(ran, [x, *weights, *carries], y, finals)

    def end(self, chunk: Chunk, k: int, b: int) -> None:
        """Of the model."""
        made = chunk.walk.end()
        if self.call.outputs:
            self.results.outputs[self.part(k, b)] = tree_map(without_graph, made)
        if self.call.loss is not None:
            loss = self.call.loss(self.model.assemble(made), self.part(k, b))
            self.results.losses[self.part(k, b)] = loss.detach()
            chunk.walk.back([loss], [torch.ones_like(loss)])
        elif self.gradients:
            chunk.end = tree_leaves(made)
        if not self.gradients:
            del self.results.kept[k, b]

    def summary(self, layer: int, k: int, b: int) -> Any:
        chunk, last = self.chunk(k, b), k == self.K - 1
        return chunk.called[layer].ran.summary(*self.arrived(chunk, layer, k, b), last=last)

    def backward(self, layer: int, k: int, b: int, entering: Tensor | None = None) -> None:
        chunk = self.chunk(k, b)
        arrived = self.arrived(chunk, layer, k, b)
        called = chunk.called.pop(layer)
        chunk.walk.forget([called.y, *called.finals])
        x, *weights = called.given[: 1 + len(called.ran.weights)]
        needs = Needs([x.requires_grad], [weight.requires_grad for weight in weights])
        found = called.ran.backward(entering, *arrived, needs)
        chunk.walk.back(called.given, [*found.sources, *found.params, *found.carries])
        if layer == 0:
            for v in range(self.model.arguments):
                self.results.arguments[self.part(k, b), v] = chunk.walk.of_argument(v)
            del self.results.kept[k, b]
        self.results.hold(-1)
        stage = layer * self.K + k
        if self.sums.add(stage, b, chunk.walk.taken()):
            self.ended(stage)

    def arrived(self, chunk: Chunk, layer: int, k: int, b: int) -> tuple[Tensor | None, list[Tensor | None]]:
        """The cotangents of a layer's y, [T, B, n], and of its final carries, [B, n] each, from the loss and from the
        layers above."""
        if chunk.end is not None:
            chunk.walk.back(chunk.end, self.call.cotangents[self.part(k, b)])
            chunk.end = None
        called = chunk.called[layer]
        found = [chunk.walk.gradient(leaf) for leaf in (called.y, *called.finals)]
        g_y, *g_finals = (None if g is None else g.to(called.ran.sweep.dtype) for g in found)
        return g_y, g_finals


def reads(inputs: Inputs, K: int, action: Action) -> list[Item]:
    """What F and B leave for other jobs of their own chunk stays with the worker, and is no item. inputs: the
    schedule's."""
    return [Item(d, s, b) for s, b, d in inputs(*action) if s % K != action.stage % K or d not in "FB"]


def writes(action: Action) -> list[Item]:
    return [] if action.kind == "B" else [Item(action.kind, action.stage, action.batch)]


def at_chunk(x: Any, axis: int | None, k: int, K: int) -> Any:
    """Chunk k of K of a tensor; all of what has no axis of time."""
    return x if axis is None else x.tensor_split(K, axis)[k]
