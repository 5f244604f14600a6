"""The jobs of stages: F, B and, where the backward is split, W of a stage and a micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from bppsa.common.graph import tensors_in
from bppsa.common.leaves import wants_gradient, without_graph
from bppsa.common.stages import INPUT, Stages
from bppsa.runtime.worker.draws import Seed, drawing_from
from bppsa.runtime.worker.gradients import Grads, Sums
from bppsa.runtime.worker.modes import Modes
from bppsa.runtime.worker.norms import watched
from bppsa.runtime.worker.results import End, Middle, Results, SavedForward, added
from bppsa.runtime.worker.shell import Shell
from bppsa.schedule.programs.messages import Item
from bppsa.schedule.programs.program import Action


class Loss(Protocol):
    def __call__(self, output: Any, batch: int) -> tuple[Tensor, Any]:
        """The loss [] of what the model returns for a micro-batch, and metrics."""


@dataclass(frozen=True)
class PipelineCall:
    """One step, or one call of the model: the same for all workers. arguments: of each micro-batch, the model's."""

    arguments: Sequence[Sequence[Any]]
    modes: Modes
    seeds: Sequence[Seed]
    signature: str = ""  # of what decides the shapes that jobs hand on
    brought: Sequence[Any] = ()  # leaves of the batch, which each rank has whole
    scale: float = 1.0  # of gradients
    around: Callable[[int], AbstractContextManager[Any]] = nullcontext  # what the model's own loss is to run in
    loss: Loss | None = None  # None: the model is called as a module, and `cotangents` come later
    split: bool = False  # whether W is a job of its own
    outputs: bool = False  # whether what the model returns is kept
    cotangents: Sequence[Sequence[Tensor | None]] = ()  # of each micro-batch, by tensor that the model returns


class Pipeline:
    """The work of one lane. shells: of each stage that it runs."""

    def __init__(
        self,
        stages: Stages,
        call: PipelineCall,
        shells: Mapping[int, Shell],
        results: Results,
        sums: Sums,
        ended: Callable[[int], None],
    ) -> None:
        """ended: called with a stage when the worker has its last gradient of the stage's weights."""
        self.stages, self.call, self.shells, self.results = stages, call, shells, results
        self.sums, self.ended = sums, ended
        self.jobs = {"F": self.forward, "B": self.backward, "W": self.weights}
        self.gradients = call.modes.grad and not call.modes.inference

    def run(self, action: Action, inputs: Sequence[Any]) -> Sequence[Any]:
        counting = self.call.around(action.batch) if self.stages.stages[action.stage].counts else nullcontext()
        with self.call.modes.entered(), counting:
            return self.jobs[action.kind](action.stage, action.batch, inputs)

    def forward(self, s: int, b: int, inputs: Sequence[Any]) -> list[Any]:
        stage, shell, results = self.stages.stages[s], self.shells[s], self.results
        gradients, weights = self.gradients, shell.weights()
        if gradients:
            results.hold(+1)
        from_jobs = iter(inputs)
        values = [
            self.call.arguments[b][v] if self.stages.values[v].source == INPUT else next(from_jobs)
            for v in stage.inputs
        ]
        flat = [tree_flatten(value) for value in values]
        leaves = [[leaf_of(x, gradients) for x in xs] for xs, _ in flat]
        given = [
            tree_unflatten([x if leaf is None else leaf for x, leaf in zip(xs, new, strict=True)], spec)
            for (xs, spec), new in zip(flat, leaves, strict=True)
        ]
        last = s == len(self.stages) - 1
        with drawing_from(self.call.seeds[b]), watched(shell.norms) as seen:
            made = shell.module(*given)
        made, middles = made if shell.readings else (made, ())
        made = shell.apart(made)
        results.seen[s, b] = seen
        if last:
            made = self.finish(b, made)
        if gradients:
            held = [
                [leaf for x, leaf in zip(xs, new, strict=True) if isinstance(x, Tensor)]
                for (xs, _), new in zip(flat, leaves, strict=True)
            ]
            read = [{name: weights[name] for name in names if name in weights} for names in shell.readings]
            pairs = [
                Middle(get_gradient_edge(x), own)
                for x, own in zip(middles, read, strict=True)
                if own and wants_gradient(x)
            ]
            results.kept[s, b] = SavedForward(held, [tensors_in(value) for value in made], weights, pairs)
        return [] if last else [tree_map(without_graph, value) for value in made]

    def finish(self, b: int, made: tuple[Any, ...]) -> tuple[Any, ...]:
        """The end of the last stage: the loss, or what the model returns."""
        if self.call.outputs:
            self.results.outputs[b] = tree_map(without_graph, made)
        if self.call.loss is None:
            return made
        loss, metrics = self.call.loss(self.stages.assemble(made), b)
        self.results.losses[b] = loss.detach()
        if metrics is not None:
            self.results.metrics[b] = tree_map(without_graph, metrics)
        return (loss,)

    def backward(self, s: int, b: int, inputs: Sequence[Any]) -> list[Any]:
        kept = self.results.kept[s, b]
        outs, cotangents = self.ends(s, b, kept, inputs)
        leaves = [leaf for xs in kept.leaves for leaf in xs if leaf is not None]
        later: list[Tensor | GradientEdge] = (
            [middle.made for middle in kept.middles] if self.call.split else list(kept.weights.values())
        )
        found = gradients_of(outs, [*leaves, *later], cotangents, keep=self.call.split)
        rest = found[len(leaves) :]
        if not self.call.split:
            self.done(s, b, dict(zip(kept.weights, rest, strict=True)))
        elif kept.middles:
            pairs = zip(kept.middles, rest, strict=True)
            kept.ends = [End([middle.made], [grad], middle.weights) for middle, grad in pairs if grad is not None]
        else:
            kept.ends = [End(outs, cotangents, kept.weights)]
        from_leaves = iter(found)
        by_value = [[None if leaf is None else next(from_leaves) for leaf in xs] for xs in kept.leaves]
        sent = []
        for v, grads in zip(self.stages.stages[s].inputs, by_value, strict=True):
            if self.stages.values[v].source == INPUT:
                self.results.arguments[b, v] = added(self.results.arguments.get((b, v)), grads)
            else:
                sent.append(grads)
        return sent

    def weights(self, s: int, b: int, inputs: Sequence[Any]) -> list[Any]:
        kept = self.results.kept[s, b]
        grads: dict[str, Tensor | None] = {}
        for made, cotangents, weights in kept.ends:
            grads.update(zip(weights, gradients_of(made, list(weights.values()), cotangents, keep=False), strict=True))
        self.done(s, b, grads)
        return []

    def ends(self, s: int, b: int, kept: SavedForward, inputs: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]]:
        """The outputs that the backward begins at, and the gradients there: from each reader in the order of stages."""
        if s == len(self.stages) - 1:
            made = [x for xs in kept.made for x in xs]
            scaled = self.call.loss is not None
            grads = [torch.full_like(made[0], self.call.scale)] if scaled else self.call.cotangents[b]
        else:
            made, grads, from_jobs = [], [], iter(inputs)
            for v, xs in zip(self.stages.stages[s].outputs, kept.made, strict=True):
                total: Sequence[Tensor | None] | None = None
                for _ in self.stages.values[v].readers:
                    total = added(total, next(from_jobs))
                made += xs
                grads += total if total is not None else [None] * len(xs)
        pairs = [(x, g) for x, g in zip(made, grads, strict=True) if x.requires_grad and g is not None]
        return [x for x, _ in pairs], [g for _, g in pairs]

    def done(self, s: int, b: int, grads: dict[str, Tensor | None]) -> None:
        del self.results.kept[s, b]
        self.results.hold(-1)
        found: Grads = {name: grad for name, grad in grads.items() if grad is not None}
        if self.sums.add(s, b, found):
            self.ended(s)


def reads(stages: Stages, action: Action) -> list[Item]:
    s, b, d = action
    stage = stages.stages[s]
    if d == "F":
        return [Item("A", v, b) for v in stage.inputs if stages.values[v].source != INPUT]
    if d == "B":
        return [Item("G", v, b, q) for v in stage.outputs for q in stages.values[v].readers]
    return []


def writes(stages: Stages, action: Action) -> list[Item]:
    s, b, d = action
    stage = stages.stages[s]
    if d == "F":
        return [Item("A", v, b) for v in stage.outputs]
    if d == "B":
        return [Item("G", v, b, s) for v in stage.inputs if stages.values[v].source != INPUT]
    return []


def leaf_of(x: Any, gradients: bool) -> Tensor | None:
    """A leaf in the place of a tensor that a gradient flows to."""
    return x.detach().requires_grad_() if gradients and wants_gradient(x) else None


def gradients_of(
    outs: Sequence[Any],  # tensors, or where the graph has them
    wanted: Sequence[Any],
    cotangents: Sequence[Tensor],
    keep: bool,
) -> Sequence[Tensor | None]:
    if not outs or not wanted:
        return [None] * len(wanted)
    return torch.autograd.grad(outs, wanted, cotangents, retain_graph=keep, allow_unused=True)
