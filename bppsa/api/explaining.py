"""What `compile` would find and choose for a call, told without keeping the compiled model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bppsa.api.compiling import compile, report
from bppsa.api.options import options_of
from bppsa.decisions import Decision, Report
from bppsa.distributed.compiled import Scheduled
from bppsa.errors import ArgumentError, StrategyError, kind_of
from bppsa.frontend import call_log
from bppsa.frontend.trials import logged_calls
from bppsa.fxpasses.partition.call.arguments import parameters_of
from bppsa.plan.forward import Forward, forward_of
from bppsa.plan.strategy import Strategy, strategy_of
from bppsa.plan.work import PYTORCH

NO_PART = "it has no nn.RNN, nn.GRU or nn.LSTM, no bppsa.scan, no loop over time and no pruned layer"
NO_SCAN = "a cell is explained by its scan: bppsa.explain(lambda xs: bppsa.scan(cell, carry, xs), xs)"
MOST_NAMED = 3
MOST_CALLS = 4

OF_MODULES = {
    **dict.fromkeys(("strict", "budget"), "is of stages"),
    "masks": "names weights",
    "sparse": "is of weights",
    "loops": "is of forwards",
}


def explain(
    model: nn.Module | Callable[..., Any],
    *inputs: Any,
    strategy: str | Strategy = "auto",
    forward: str | Forward = "auto",
    strict: bool | None = None,
    budget: int | None = None,
    masks: Mapping[str, Tensor] | None = None,
    sparse: str | None = None,
    loops: bool | None = None,
) -> Report:
    """Run `model(*inputs)` as `compile(model, ...)` would, and report what was found and chosen, and why.

    A model with a loop over time runs a few times: calls in which loops are looked for decide less than later ones. The
    report begins with a sentence on what will be faster, and by how much. Feed-forward stages that PyTorch runs are in
    it only where a strategy is asked for. Buffers and the random state are as
    before afterwards. The options are those of `compile`.

    Args:
        model: a module, or a function that calls `bppsa.scan`; strict, budget, masks, sparse and loops are errors for
            one.
        inputs: example inputs of the size that the model will be trained with.

    Raises:
        ArgumentError: `inputs` are not what the model takes, or such options were given for a function (a TypeError).
        StrategyError: what `compile` raises for its options.
    """
    if isinstance(model, Scheduled):
        raise StrategyError("bppsa.explain is for one device; .stages and .measured tell of a model with a schedule")
    chosen, ahead = strategy_of(strategy), forward_of(forward)
    options: dict[str, Any] = {"strict": strict, "budget": budget, "masks": masks, "sparse": sparse, "loops": loops}
    options_of(chosen, ahead, **options)
    check_inputs(model, inputs)
    if not isinstance(model, nn.Module):
        for name, given in options.items():
            if given is not None:
                raise ArgumentError(
                    f"{name}= {OF_MODULES[name]} of an nn.Module, and a function has none; leave it out"
                )
        with call_log.collecting(chosen, ahead, explained=True) as taken, torch.random.fork_rng():
            model(*inputs)
        return Report(taken, summary(taken, "the function", "" if taken else NO_SCAN))
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with call_log.collecting(explained=True), torch.random.fork_rng():
            fast = compile(model, strategy=strategy, forward=forward, **options)
            result = settled(fast, inputs)
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
    decisions = report(fast).decisions
    if chosen.name == "auto":  # nobody asked for a scan over feed-forward stages
        decisions = tuple(parts(decisions))
    like_a_cell = len(inputs) == 2 and isinstance(result, tuple) and len(result) == 2
    return Report(decisions, summary(decisions, "the model", NO_SCAN if like_a_cell and not parts(decisions) else ""))


def settled(fast: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """The result of the first call in which no loops were looked for: from there on all calls decide alike."""
    for _ in range(MOST_CALLS):
        before = logged_calls()
        result = fast(*inputs)
        if logged_calls() == before:
            break
    return result


def parts(decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions on parts that bppsa is for: not the feed-forward stages that it leaves to PyTorch."""
    return [decision for decision in decisions if (decision.kind, decision.strategy) != ("chain", "pytorch")]


def summary(decisions: Sequence[Decision], what: str, hint: str) -> str:
    """A sentence: what will be faster and by how much, or that nothing is rewritten and why."""
    found = parts(decisions)
    rewritten = [decision for decision in found if decision.strategy != PYTORCH]
    if not rewritten:
        reasons = {decision.reason for decision in found}
        why = NO_PART if not found else reasons.pop() if len(reasons) == 1 else "each part has its reason below"
        return "; ".join(filter(None, [f"nothing to rewrite: {what} runs as PyTorch runs it ({why})", hint]))
    others = [decision for decision in found if decision.strategy == PYTORCH and decision.path]
    rest = f"; PyTorch runs {named(others)}" if others else ""
    gains = [decision.times_as_fast for decision in rewritten]
    return f"{named(rewritten)} {predicted([gain for gain in gains if gain is not None])}{rest}"


def predicted(gains: Sequence[float]) -> str:
    if not gains:
        return "runs by generated kernels, as asked; how much faster or slower that is was not predicted"
    low, high = (shown(end(gains)) for end in (min, max))
    times = f"predicted {low if low == high else f'{low} to {high}'} times as fast as PyTorch's"
    if min(gains) > 1:
        return f"will be faster: {times}"
    return f"{'will be slower' if max(gains) <= 1 else 'will be faster in part'}: {times}"


def shown(gain: float) -> str:
    return f"{gain:.1f}" if gain >= 1 else f"{gain:.2g}"


def named(decisions: Iterable[Decision]) -> str:
    """The first few by their paths."""
    names = list(dict.fromkeys(decision.path or "the model" for decision in decisions))
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    *first, last = [*names[:MOST_NAMED], *more]
    return f"{', '.join(first)} and {last}" if first else last


def check_inputs(model: Any, inputs: tuple[Any, ...]) -> None:
    """Checks that a call can begin; what its tensors should be is for the model to say."""
    function = model.forward if isinstance(model, nn.Module) else model
    if not callable(function):
        raise ArgumentError(f"bppsa.explain takes an nn.Module or a function, not {kind_of(model)}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin that does not tell
        return
    try:
        signature.bind(*inputs)
    except TypeError as error:
        takes = parameters_of(signature)
        raise ArgumentError(
            f"bppsa.explain runs the model and needs example inputs for it, bppsa.explain(model, *inputs): "
            f"{type(model).__name__ if isinstance(model, nn.Module) else 'the function'} takes ({takes}): {error}"
        ) from error
