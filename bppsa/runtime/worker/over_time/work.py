"""The jobs of the distributed scan: a recurrent model whose time axis is cut into K chunks (schedule.zoo.time_chunks).

Stage l * K + k is recurrent layer l on chunk k. F runs what comes before the layer, from the layer below on, and the
layer, from the carry that chunk k - 1 left; behind the last layer's F, L goes on to the end of the model and its loss,
whose cotangents it takes at once. R is the layer's summary, the other jobs of the scan combine summaries, and B is the
backward of the layer, from the cotangent that enters at the chunk's end, and of what comes before it. Where that
cotangent is known when R runs, which it is for the last chunk, R is B's sweep, and B goes on from there.

Losses, outputs and gradients of arguments are left for part b * K + k: chunk k of micro-batch b.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from bppsa.common.leaves import without_graph
from bppsa.common.stages import OverTime
from bppsa.runtime.recurrent.scan.extent import Given
from bppsa.runtime.recurrent.sweep import Sweep
from bppsa.runtime.worker.draws import Seed, drawing_from
from bppsa.runtime.worker.gradients import Sums
from bppsa.runtime.worker.over_time.chunk import Chunk
from bppsa.runtime.worker.over_time.layer import Summary, combined
from bppsa.runtime.worker.over_time.walk import ChunkWalk
from bppsa.runtime.worker.pipeline import PipelineCall
from bppsa.runtime.worker.results import Results
from bppsa.runtime.worker.shell import Shell
from bppsa.schedule.programs.messages import Item
from bppsa.schedule.programs.program import Action

Inputs = Callable[[int, int, str], Any]  # a schedule's
LayerJob = Callable[..., list[Any]]  # of a layer, a chunk, a micro-batch and what it reads: what it leaves for others
Sweeps = Callable[[nn.RNNBase, int, Tensor], Sweep]  # of a module's layer, for its input [T, B, I]


class TimeChunks:
    """The work of one worker, which has all layers of its chunks."""

    def __init__(
        self,
        model: OverTime,
        call: PipelineCall,
        shells: Mapping[int, Shell],
        results: Results,
        sums: Sums,
        ended: Callable[[int], None],
        sweeps: Sweeps,
    ) -> None:
        """ended: called with a stage when the worker has its last gradient of the stage's weights."""
        self.model, self.call, self.results = model, call, results
        self.sums, self.ended, self.sweeps = sums, ended, sweeps
        self.K = model.chunks
        self.gradients = call.modes.grad and not call.modes.inference
        self.chunks: dict[tuple[int, int], Chunk] = results.kept  # by chunk and micro-batch
        calls = [entry for chunk in self.chunks.values() for entry in chunk.called.items()]
        self.used = {layer: called.ran.sweep for layer, called in calls}
        shell = shells[min(shells)]  # all stages have one module
        self.graph: Any = shell.module
        self.weights = shell.weights()
        self.jobs: dict[str, LayerJob] = {"F": self.forward, "L": self.end, "R": self.summary, "B": self.backward}

    def run(self, action: Action, inputs: Sequence[Any]) -> Sequence[Any]:
        layer, k = divmod(action.stage, self.K)
        with self.call.modes.entered():
            return self.jobs.get(action.kind, self.combine)(layer, k, action.batch, *inputs)

    def part(self, k: int, b: int) -> int:
        return b * self.K + k

    def seed(self, k: int, b: int) -> Seed:
        return replace(self.call.seeds[b], batch=self.part(k, b))

    def forward(self, layer: int, k: int, b: int, carries: Given | None = None) -> list[tuple[Tensor, ...]]:
        """Takes the carry before the chunk, [B, n] each, to that after it; None: what the module begins with."""
        node, number, path, op = self.model.layers[layer]
        if layer == 0:
            self.chunks[k, b] = self.begun(k, b)
        chunk = self.chunks[k, b]
        with drawing_from(self.seed(k, b)):
            module = chunk.begin(node, self.graph, path) if number == 0 else chunk.module
            assert module is not None
            given = module.initial(number) if carries is None else carries
            sweep = self.sweeps(module.module, number, module.x)
            called = chunk.call(sweep, module.weights(number), given, save=self.gradients)
            chunk.advance(called, op)
            if self.gradients:
                self.results.hold(+1)
                chunk.called[layer], self.used[layer] = called, called.ran.sweep
        return [tuple(final.detach() for final in called.finals)]

    def begun(self, k: int, b: int) -> Chunk:
        leaves, spec = tree_flatten(list(self.call.arguments[b]))
        cut = [at_chunk(x, of.time, k, self.K) for x, of in zip(leaves, self.model.arguments_axes, strict=True)]
        return Chunk(ChunkWalk(self.graph, tree_unflatten(cut, spec), self.weights, gradients=self.gradients))

    def end(self, layer: int, k: int, b: int) -> list[Any]:
        """Goes on from the last layer to what the model returns, and its loss."""
        chunk, part = self.chunks[k, b], self.part(k, b)
        with drawing_from(self.seed(k, b)):
            made = chunk.walk.end()
        if self.call.outputs:
            self.results.outputs[part] = tree_map(without_graph, made)
        if self.call.loss is not None:
            loss, _ = self.call.loss(self.model.assemble(made), part)
            del made  # scores are large, and the backward of a loss seldom needs them
            self.results.losses[part] = loss.detach()
            chunk.walk.back([loss], [torch.full_like(loss, self.call.scale)])
        elif self.gradients:
            chunk.end = tree_leaves(made)
        if not self.gradients:
            del self.chunks[k, b]
        return []

    def in_backward(self, k: int, b: int) -> Chunk:
        chunk = self.chunks[k, b]
        if self.call.loss is None:
            chunk.begin_backward(self.call.cotangents[self.part(k, b)])
        return chunk

    def summary(self, layer: int, k: int, b: int, *entering: Tensor) -> list[Summary]:
        """entering: [B, N], the cotangent at the chunk's end, where the chunks behind it are known."""
        chunk = self.in_backward(k, b)
        if not entering and k < self.K - 1:
            return [chunk.pair(layer)]
        chunk.swept[layer] = swept = chunk.sweep(layer, *entering)
        return [torch.cat(swept.carries, 1)]

    def combine(self, layer: int, k: int, b: int, *summaries: Summary) -> list[Summary]:
        """The summary of chunks that follow each other. summaries: theirs, the last chunk's first."""
        return [combined(summaries, self.used[layer])]

    def backward(self, layer: int, k: int, b: int, entering: Tensor | None = None) -> list[Any]:
        """entering: [B, N], the cotangent at the chunk's end. Leaves gradients with `sums`."""
        chunk = self.in_backward(k, b)
        grads = chunk.finish(layer, entering)
        if layer == 0:
            for v in range(self.model.arguments):
                self.results.arguments[self.part(k, b), v] = chunk.walk.of_argument(v)
            del self.chunks[k, b]
        self.results.hold(-1)
        stage = layer * self.K + k
        if self.sums.add(stage, b, grads):
            self.ended(stage)
        return []


def reads(inputs: Inputs, K: int, action: Action) -> list[Item]:
    """What F, L, B and, for its B, R leave for other jobs of their own chunk stays with the worker, and is no item.
    inputs: the schedule's."""
    stays = "FLBR" if action.kind == "B" else "FLB"
    return [Item(d, s, b) for s, b, d in inputs(*action) if s % K != action.stage % K or d not in stays]


def writes(action: Action) -> list[Item]:
    return [] if action.kind in "LB" else [Item(action.kind, action.stage, action.batch)]


def at_chunk(x: Any, axis: int | None, k: int, K: int) -> Any:
    """Chunk k of K of a tensor; all of what has no axis of time."""
    return x if axis is None else x.tensor_split(K, axis)[k]
