"""The public functions: compile a model, what it reports and trains with, scan over a cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bppsa.api.options import options_of
from bppsa.api.products import compiled
from bppsa.decisions import Report
from bppsa.distributed.compiled import Scheduled, trainer_of
from bppsa.distributed.steps.trainer import Trainer
from bppsa.errors import ArgumentError, StrategyError, kind_of
from bppsa.frontend.cell import scanning
from bppsa.frontend.loops.functions import report_of
from bppsa.frontend.state import is_compiled, state_of
from bppsa.plan.forward import Forward, forward_of
from bppsa.plan.strategy import Strategy, strategy_of
from bppsa.schedule.job_graph.spec import Build, Recipe, Schedule


def compile(
    model: nn.Module,
    *,
    strategy: str | Strategy = "auto",
    forward: str | Forward = "auto",
    fallback: str | None = None,
    strict: bool | None = None,
    budget: int | None = None,
    masks: Mapping[str, Tensor] | None = None,
    sparse: str | None = None,
    loops: bool | None = None,
    schedule: Schedule | Recipe | Build | None = None,
    microbatches: int | None = None,
    stages: int | Sequence[nn.Module] | None = None,
    workers: int | None = None,
    loss_fn: Callable[..., Tensor] | None = None,
    loss_weight: Callable[[Any], float] | None = None,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    data: str | None = None,
    seed: int | None = None,
    recompute: str | Callable[[int], str | None] | None = None,
    balance: str | None = None,
    speeds: Sequence[float] | None = None,
) -> nn.Module:
    """Return a model that computes what `model` computes, its recurrences and pruned layers by generated kernels.

    The result shares the Parameters and buffers of `model`, has the same classes and `state_dict` keys, and leaves
    `model` as it was. The backward of its feed-forward parts is PyTorch's, unless a strategy asks for a scan over the
    stages' transposed Jacobians (BPPSA section 3). `.report` of the result tells what its last call did and, before the
    first, what waits for it.

    nn.Conv2d and nn.Linear count as pruned by torch.nn.utils.prune, by a parametrization that multiplies with a mask,
    or by `masks`. A mask given here is permanent: entries outside it act as zero and get zero gradients, even after
    `load_state_dict`. Inductor, and a scan over stages, are given pruned layers as they are.

    With a schedule the result trains on several workers: `.step(x, target)` is a training step, and it can be called as
    a module. Workers are the ranks of torch.distributed where a process group is there, threads otherwise.

    Args:
        model: what to compile.
        strategy: the order in which a backward's transposed Jacobians are combined: "auto", "sequential", "chunked",
            "blelloch", "hybrid", or one of `bppsa.strategies`. "auto" rewrites where a gain is predicted.
        forward: "auto", "sequential" (step by step), "newton" or `bppsa.strategies.newton` (all steps at once, by
            Newton's iteration), or "pytorch" (a module's own, on a GPU cuDNN's; the backward is ours). "auto" takes, on
            a GPU, the one predicted to be fastest. A call in which Newton's iteration does not converge runs step by
            step, as do the next 8 (twice as many after each further failure in a row); then it is tried again.
        fallback: "eager" (the default) runs what is not rewritten as it is, "inductor" hands it to Inductor.
        strict: where a strategy scans over feed-forward stages, True makes a stage without a rule a ChainError in the
            call. Otherwise autograd differentiates that stage, which splits the scan.
        budget: bytes that such a scan may take for transposed Jacobians, by default a quarter of the machine's; beyond,
            its up-sweep stops earlier.
        masks: from the name of a weight, such as "features.0.weight", to a bool tensor of its shape, True where the
            weight is kept.
        sparse: "masks" (the default), or "auto": the zeros that any other weight has now become its mask.
        loops: True (the default) watches a forward in its first call of each kind; where all that it does is known, its
            loops over time run as one scan from then on. `.report` names the line of each loop, and why one is left.
        schedule: a schedule of `bppsa.schedule`, such as `lpp(G=4)`, or one of your own.
        microbatches: into how many parts a batch is cut, by torch.tensor_split (8): the first tensor, and those that
            have as many rows in the example, if the model treats them as rows.
        stages: how many stages of equal cost to cut (8), or a list of modules that are the stages.
        workers: how many workers; by default as many as the schedule needs.
        loss_fn: a function of (output, target), a mean over rows, or a sum where its `reduction` says so. Without it
            the model returns its loss, something with a field or key `loss`, or a tuple whose first or last element
            is its only number, as (logits, loss).
        loss_weight: a function of a target: what a micro-batch counts, where that is not its rows.
        example_inputs: a whole batch to cut the model by, a tensor or a tuple; by default the first call's.
        example_kwargs: its keyword arguments.
        data: "global" (the default): every rank is given the whole batch; "local": each brings its own rows (`ddp`,
            `fsdp`).
        seed: from which jobs draw random numbers, by default torch's initial seed.
        recompute: "full": each stage keeps its inputs alone, and runs its forward again before its backward;
            "selective": it keeps the results of matrix products and convolutions too, and computes the rest again, such
            as norms, activations and attention's scores; or a function of a stage's number that gives one of these, or
            None. Without it, and where the function gives None, calls of torch.utils.checkpoint in the forward are
            kept to.
        balance: "cost" (the default): stages are made equal by flops and bytes; "measured": by times that ops take on
            the example, on each worker.
        speeds: how fast each worker is, beside the others: a worker of speed 0.5 is given half as much.

    Raises:
        StrategyError: a value that an option cannot have, or an option that says nothing about what is asked for, such
            as those of a schedule without one (a ValueError).
        ArgumentError: a value of another type, or a mask for what is no weight of its own (a TypeError).
        InputError: a mask of another shape or dtype than bool (a RuntimeError).
        InputValueError: a weight that is not zero outside of its mask (a ValueError).
        ScheduleError: a schedule that cannot run (a ValueError).
        PartitionError: a model that cannot be cut (a RuntimeError).
    """
    options = options_of(
        strategy_of(strategy),
        forward_of(forward),
        fallback=fallback,
        strict=strict,
        budget=budget,
        masks=masks,
        sparse=sparse,
        loops=loops,
        schedule=schedule,
        microbatches=microbatches,
        stages=stages,
        workers=workers,
        loss_fn=loss_fn,
        loss_weight=loss_weight,
        example_inputs=example_inputs,
        example_kwargs=example_kwargs,
        data=data,
        seed=seed,
        recompute=recompute,
        balance=balance,
        speeds=speeds,
    )
    if not isinstance(model, nn.Module):
        raise StrategyError(
            f"bppsa.compile takes an nn.Module, not {kind_of(model)}; a function with a loop over time "
            f"takes @bppsa.loop, a recurrence over a cell bppsa.scan(cell, carry, xs), and any other "
            f'torch.compile(function, backend="bppsa")'
        )
    if isinstance(model, Scheduled):
        raise StrategyError("this model has a schedule already; compile the model that it was made from")
    return compiled(model, options)


def report(model: nn.Module | Callable[..., Any]) -> Report:
    """Return what the last call of a compiled model decided and why; before the first call, what was found.

    The model's `.report` is the same where its user has no attribute, child or method of that name.

    Raises:
        ArgumentError: neither `bppsa.compile` nor `bppsa.loop` has returned it (a TypeError).
    """
    found = state_of(model).report if isinstance(model, nn.Module) and is_compiled(model) else report_of(model)
    if found is None:
        raise ArgumentError(
            f"bppsa.report takes a model that bppsa.compile returned, or a function of @bppsa.loop, not "
            f"{kind_of(model)}; of others "
            f"bppsa.explain(model, *inputs) tells what a call decides"
        )
    return found


def trainer(model: nn.Module) -> Trainer:
    """Return what trains a model that was compiled with a schedule.

    The model's own attributes `.step`, `.stages`, `.timeline` and so on are the same where its user has none, no child
    and no method of that name.

    Raises:
        ArgumentError: `bppsa.compile` has not returned this model for a schedule (a TypeError).
    """
    if not isinstance(model, Scheduled):
        raise ArgumentError(
            f"bppsa.trainer takes a model that bppsa.compile(model, schedule=...) returned, not a "
            f"{type(model).__name__}"
        )
    return trainer_of(model)


def scan(
    cell: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any,
    *,
    reverse: bool = False,
    strategy: str | Strategy | None = None,
    forward: str | Forward | None = None,
) -> tuple[Any, Any]:
    """Run `carry, y_t = cell(carry, x_t)` over the steps of `xs` and return the last carry and all ys.

    A cell runs as one generated kernel each way if it treats the carry by pointwise ops, products with parameters,
    moved columns and reductions of rows (softmax, max, cumsum, norms), whatever it does to x alone or for its outputs
    alone. Any other cell, and a call so short that the loop is predicted to be faster, runs op by op, and
    `bppsa.explain` says why.

    Args:
        cell: a function or a Module; parameters and tensors that it closes over get gradients.
        carry: a pytree of [B, ...]; the cell must return one of the same structure, shapes and dtypes. Integers and
            truth values go along with real numbers while they are exact in these numbers' dtype.
        xs: a pytree of [T, B, ...] or [T], T >= 1.
        reverse: runs the steps from the last to the first.
        strategy: of the backward, a name or one of `bppsa.strategies`; None is that of the compiled model in which this
            is called, or "auto".
        forward: "sequential", "newton" (`bppsa.strategies.newton`) or "auto"; None is that of the model, or "auto".

    Returns:
        The last carry, and ys: a pytree of [T, ...], in the order of xs also with `reverse`.

    Raises:
        CarryError: the carry changes, a leaf is no tensor, or the cell does not return a pair (a TypeError).
        InputError: xs do not agree in T (a RuntimeError). What PyTorch's ops raise within the cell keeps its type, and
            says what the cell was given.
    """
    if torch.compiler.is_compiling():
        from bppsa.frontend.dynamo import backend

        return backend.scan(cell, carry, xs, reverse, strategy, forward)
    return scanning.scan(cell, carry, xs, reverse=reverse, strategy=strategy, forward=forward)
