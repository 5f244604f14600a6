"""A scheduled model that is called as a module: all forwards are one op of autograd."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves

from bppsa.distributed.batch.batches import Batch
from bppsa.distributed.steps.plans import StepPlan
from bppsa.distributed.steps.training import Training
from bppsa.errors import WorkerError


class ApplyModel(torch.autograd.Function):
    """All forwards as one op, and all backwards as its gradient."""

    @staticmethod
    def forward(
        ctx: Any, training: Training, batch: Batch, names: tuple[str, ...], spec: list[Any], *tensors: Tensor
    ) -> tuple[Any, ...]:
        """tensors: the Parameters by `names`, and what of the arguments wants a gradient."""
        call = replace(batch.call, modes=replace(batch.call.modes, grad=True), outputs=True)
        found, ctx.state = training.run("forward", call)
        leaves, structure = tree_flatten(training.outputs(found, batch))
        spec.append(structure)
        ctx.training, ctx.batch, ctx.call, ctx.names = training, batch, call, names
        ctx.made = next(iter(found.outputs.values()))
        flows = [isinstance(x, Tensor) and x.requires_grad for x in tree_leaves(training.stages.assemble(ctx.made))]
        pairs = zip(leaves, flows, strict=True)
        ctx.mark_non_differentiable(*(x for x, flow in pairs if isinstance(x, Tensor) and not flow))
        ctx.set_materialize_grads(False)
        return tuple(leaves)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """Raises WorkerError where it is asked for a second time, or for gradients of gradients."""
        if torch.is_grad_enabled():  # create_graph=True
            raise WorkerError(
                "a scheduled model gives no gradients of gradients: its jobs free what they kept; take a penalty on "
                "gradients of the model itself"
            )
        if ctx.state is None:
            raise WorkerError(
                "a second backward through one call of a scheduled model: the first has freed what its jobs kept; call "
                "the model again"
            )
        call = replace(ctx.call, cotangents=ctx.training.cotangents(ctx.made, ctx.batch, grads))
        with ctx.training.engine.call():
            (found, _), ctx.state = ctx.training.run("backward", call, ctx.state), None
        weights = (found.grads.get(name) for name in ctx.names)
        return (None, None, None, None, *weights, *ctx.batch.gradients(found.arguments))


def warn_of_step(plan: StepPlan) -> None:
    graph = plan.timeline.graph
    if any(graph.jobs[p][2] != "F" and graph.jobs[q][2] == "F" for p, q in graph.edges()):
        warnings.warn(
            "called as a module, a schedule runs all forwards before the first backward, and holds the activations of "
            "all micro-batches; compiled.step(x, target) runs it as it is, and under torch.no_grad() nothing is held",
            stacklevel=7,
        )
