"""The public functions: compile a model, scan over a cell, explain what was done."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bppsa import _calls, _scan
from bppsa._chain_plans import Options
from bppsa._modules import chained
from bppsa._modules.classes import Recurrent, rewrite
from bppsa._pruned.adopt import adopt_pruned
from bppsa._pruned.classes import Pruned
from bppsa._pruned.masked import give_masks
from bppsa._pruned.masks import given_masks
from bppsa._workers.start import counterparts, scheduled
from bppsa._workers.training import Settings
from bppsa.errors import ArgumentError, StrategyError
from bppsa.plan.chain_choice import may_gain
from bppsa.plan.forward import Forward, forward_of
from bppsa.plan.strategy import Strategy, strategy_of
from bppsa.report import Decision, Report
from bppsa.schedule.spec import Build, Recipe, Schedule

FALLBACKS = ("eager", "inductor")
SPARSE = ("masks", "auto")
DATA = ("global", "local")
NOT_YET = "the model has not run yet: what is found so far, to be decided in a call (scans are found when they run)"
NO_SCAN = (
    "nothing to rewrite: no nn.RNN, nn.GRU or nn.LSTM of a compiled model and no bppsa.scan ran; "
    "a cell is explained by its scan: bppsa.explain(lambda xs: bppsa.scan(cell, carry, xs), xs)"
)


def compile(
    model: nn.Module,
    *,
    strategy: str | Strategy = "auto",
    forward: str | Forward = "auto",
    fallback: str = "eager",
    strict: bool = False,
    budget: int | None = None,
    masks: Mapping[str, Tensor] | None = None,
    sparse: str = "masks",
    schedule: Schedule | Recipe | Build | None = None,
    microbatches: int = 8,
    stages: int | Sequence[nn.Module] = 8,
    workers: int | None = None,
    loss_fn: Callable[..., Tensor] | None = None,
    loss_weight: Callable[[Any], float] | None = None,
    example_inputs: Any = None,
    data: str = "global",
    seed: int | None = None,
) -> nn.Module:
    """A model that computes what `model` computes, its recurrences and its pruned layers by generated kernels.

    The backward of its feed-forward parts is PyTorch's, unless a strategy asks for a scan over the stages' transposed
    Jacobians (BPPSA section 3). The result shares the Parameters and buffers of `model`, has the same classes and
    `state_dict` keys, and leaves `model` as it was. What is not rewritten runs as it is (`fallback="eager"`) or goes to
    Inductor (`fallback="inductor"`). `.report` of the result tells what its last call did and, before the first, what
    waits for it.

    forward: "sequential", "newton" (`bppsa.strategies.newton`: all steps at once, by Newton's iteration), "pytorch" (a
    module's own, on a GPU cuDNN's; the backward is ours) or "auto", which on a GPU is the one predicted to be fastest.
    A module's or cell's call in which Newton's does not converge runs step by step, as do the next 8 (twice as many
    after each further failure in a row); then it is tried again.
    strict: where a strategy is asked for, a feed-forward stage without a rule is a ChainError (a RuntimeError) in the
    call, where it would otherwise be differentiated by autograd and split the scan.
    budget: bytes that a scan over stages may take for transposed Jacobians, by default a quarter of the machine's;
    beyond, its up-sweep stops earlier.

    nn.Conv2d and nn.Linear are pruned by torch.nn.utils.prune, by a parametrization that multiplies with a mask, or by
    `masks`: the name of a weight, such as "features.0.weight", -> bool tensor of its shape, True where it is kept.
    With `sparse="auto"` the zeros that any other weight has now are taken for its mask. A given mask belongs to the
    layer from then on: whoever runs it, what is outside of the mask is read as zero and has a zero gradient, whatever
    is loaded. Inductor, and a scan over stages, are given pruned layers as they are.

    schedule: trains on several workers (`bppsa.schedule`): the result has `step(x, target)`, a training step, and can
    be called as a module. Workers are the ranks of torch.distributed where a process group is there, threads otherwise.
    The model is cut into `stages`, a number or a list of modules, by cost for `example_inputs`, a whole batch: a
    tensor or a tuple, by default the first call's. A batch is cut into `microbatches` by torch.tensor_split: the first
    tensor, and those that have as many rows in the example, if the model treats them as rows.
    loss_fn(output, target) is a mean over rows, or a sum where its `reduction` says so; loss_weight(target) -> float is
    what a micro-batch counts where that is not its rows. data: "global", every rank is given the whole batch, or
    "local", each brings its own rows (`ddp`, `fsdp`). seed: of what jobs draw, by default torch's initial seed.

    Raises StrategyError (a ValueError) for an unknown strategy, forward, fallback or `sparse`, and for options of a
    schedule without one; for a mask that does not fit its weight ArgumentError (a TypeError), InputError (a
    RuntimeError) or InputValueError (a ValueError); with a schedule ScheduleError (a ValueError) where it cannot run,
    PartitionError (a RuntimeError) where the model cannot be cut.
    """
    chosen, ahead = check(strategy, fallback, sparse), forward_of(forward)
    if not isinstance(model, nn.Module):
        raise StrategyError(
            f"bppsa.compile takes an nn.Module, not a {type(model).__name__}; for a function use bppsa.scan"
        )
    if schedule is not None:
        if masks is not None or sparse != "masks" or fallback != "eager" or strict or budget is not None:
            raise StrategyError("schedule= goes with strategy and forward alone of the other options")
        if data not in DATA:
            raise StrategyError(f"unknown data={data!r}; known: {', '.join(DATA)}")
        asked = chosen, ahead
        settings = Settings(schedule, microbatches, workers, loss_fn, loss_weight, seed, data == "local", asked)
        fast, by_path = rewrite(model, chosen, ahead)
        compiled = scheduled(fast, settings, counterparts(model, fast, stages), example_inputs)
        compiled.__dict__["report"] = Report(tuple(by_path.values()), NOT_YET)
        return compiled
    if loss_fn is not None or loss_weight is not None or workers is not None:
        raise StrategyError(
            "loss_fn, loss_weight and workers go with schedule=, which gives the model its step(x, target)"
        )
    given = given_masks(model, masks, sparse)
    fast, by_path = rewrite(model, chosen, ahead)
    scans = chosen.name not in ("auto", "sequential")
    if scans and given:
        raise StrategyError(f"masks= and sparse= go with strategy 'auto' or 'sequential', not with {chosen}")
    give_masks(fast, given)
    options = Options(chosen, strict, budget)
    if fallback == "eager":  # Inductor is given the layers as they are
        pruned = {} if scans else adopt_pruned(fast)
        by_path |= pruned or {decision.path: decision for decision in chains(fast, options)}
    found = tuple(by_path.values())
    if fallback == "inductor":  # what is decided while a graph is traced holds for all calls
        reason = "one op of the graph, where the call can be traced"
        runs = "sequential" if chosen.name == "auto" else str(chosen)
        found = tuple(replace(d, strategy=runs, reason=reason) if d.strategy == "waiting" else d for d in found)
    fast.__dict__["_bppsa_asked"] = chosen, ahead
    fast.__dict__["_bppsa_left"] = tuple(decision for decision in found if decision.strategy != "waiting")
    fast.__dict__["report"] = Report(found, NOT_YET if fallback == "eager" else "")
    if not isinstance(fast, (Recurrent, Pruned)):  # which keep their own
        fast.register_forward_pre_hook(begin_report)
        fast.register_forward_hook(end_report, always_call=True)
    if fallback == "inductor":
        from bppsa._backend import backend  # Dynamo takes a second to import

        fast.compile(backend=backend, options={"fallback": fallback, "strategy": str(chosen), "forward": str(ahead)})
    return fast


def chains(model: nn.Module, options: Options) -> list[Decision]:
    """Have the feed-forward modules of a clone follow a strategy. One stage after the other is what PyTorch does
    anyway, and so does "auto" unless a scan may be faster where they are; then only an explanation looks at them."""
    device = next((parameter.device.type for parameter in model.parameters()), "cpu")
    asked = options.strategy.name not in ("auto", "sequential")
    if not (asked or (options.strategy.name == "auto" and may_gain(device)) or _calls.explaining()):
        return []
    found = list(chained.candidates(model))
    for path, module in found:
        chained.adopt(module, path, options)
    return [Decision(path, "chain", "waiting", "decided in its first call") for path, _ in found]


def begin_report(module: nn.Module, args: Any) -> None:
    _calls.begin(module)


def end_report(module: nn.Module, args: Any, output: Any) -> None:
    _calls.end(module)


def explain(
    model: nn.Module | Callable[..., Any],
    *inputs: Any,
    strategy: str | Strategy = "auto",
    forward: str | Forward = "auto",
    fallback: str = "eager",
    strict: bool = False,
    budget: int | None = None,
    masks: Mapping[str, Tensor] | None = None,
    sparse: str = "masks",
) -> Report:
    """Run `model(*inputs)` once as `compile(model, ...)` would and tell what was found, chosen and left alone, and why.

    The options are those of `compile`; `fallback` changes nothing of what is told. `model` may also be a function that
    calls `bppsa.scan`, for which strict, budget, masks and sparse say nothing. Buffers and the random state are as
    before afterwards.

    Raises ArgumentError (a TypeError) where `inputs` are not what the model takes, or for masks of a function, and what
    `compile` raises for its options.
    """
    chosen, ahead = check(strategy, fallback, sparse), forward_of(forward)
    check_inputs(model, inputs)
    if not isinstance(model, nn.Module):
        if masks is not None:
            raise ArgumentError("masks= names weights of an nn.Module, and a function has none; leave it out")
        with _calls.collecting(chosen, ahead, explained=True) as taken, torch.random.fork_rng():
            model(*inputs)
        return Report(taken, "" if taken else NO_SCAN)
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with _calls.collecting(explained=True), torch.random.fork_rng():
            fast = compile(
                model, strategy=strategy, forward=forward, strict=strict, budget=budget, masks=masks, sparse=sparse
            )
            result = fast(*inputs)
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
    decisions = fast.__dict__["report"].decisions
    like_a_cell = len(inputs) == 2 and isinstance(result, tuple) and len(result) == 2
    found = [decision for decision in decisions if (decision.kind, decision.strategy) != ("chain", "pytorch")]
    return Report(decisions, NO_SCAN if like_a_cell and not found else "")


def scan(
    cell: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any,
    *,
    reverse: bool = False,
    strategy: str | Strategy | None = None,
    forward: str | Forward | None = None,
) -> tuple[Any, Any]:
    if torch.compiler.is_compiling():
        from bppsa import _backend

        return _backend.scan(cell, carry, xs, reverse, strategy, forward)
    return _scan.scan(cell, carry, xs, reverse=reverse, strategy=strategy, forward=forward)


scan.__doc__ = _scan.scan.__doc__


def check(strategy: str | Strategy, fallback: str, sparse: str) -> Strategy:
    if sparse not in SPARSE:
        raise StrategyError(f"unknown sparse={sparse!r}; known: {', '.join(SPARSE)}")
    if fallback not in FALLBACKS:
        raise StrategyError(f"unknown fallback {fallback!r}; known: {', '.join(FALLBACKS)}")
    return strategy_of(strategy)


def check_inputs(model: Any, inputs: tuple[Any, ...]) -> None:
    """That a call can begin; what its tensors should be is for the model to say."""
    function = model.forward if isinstance(model, nn.Module) else model
    if not callable(function):
        raise ArgumentError(f"bppsa.explain takes an nn.Module or a function, not a {type(model).__name__}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin that does not tell
        return
    try:
        signature.bind(*inputs)
    except TypeError as error:
        takes = ", ".join(str(p.replace(annotation=p.empty)) for p in signature.parameters.values())
        raise ArgumentError(
            f"bppsa.explain runs the model once and needs example inputs for it, bppsa.explain(model, *inputs): "
            f"{type(model).__name__ if isinstance(model, nn.Module) else 'the function'} takes ({takes}): {error}"
        ) from error
