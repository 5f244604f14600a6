"""The public functions: compile a model, scan over a cell, explain what was done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bppsa import _calls, _scan
from bppsa._modules.classes import Recurrent, rewrite
from bppsa.errors import StrategyError
from bppsa.plan.choose import STRATEGIES
from bppsa.report import Decision, Report

FALLBACKS = ("eager", "inductor")


def compile(model: nn.Module, *, strategy: str = "auto", fallback: str = "eager") -> nn.Module:
    """A model that computes what `model` computes, its recurrences by generated kernels.

    It shares the Parameters and buffers of `model`, has the same classes and `state_dict` keys, and leaves `model` as
    it was. What is not rewritten runs as it is (`fallback="eager"`) or goes to Inductor (`fallback="inductor"`).
    `.report` of the result tells what its last call did.

    Raises StrategyError (a ValueError) for an unknown strategy or fallback.
    """
    check(strategy, fallback)
    if not isinstance(model, nn.Module):
        raise StrategyError(
            f"bppsa.compile takes an nn.Module, not a {type(model).__name__}; for a function use bppsa.scan"
        )
    fast, found = rewrite(model, strategy)
    left = tuple(
        Decision(path, "module", "pytorch", str(reason)) for path, reason in found.items() if reason is not None
    )
    fast.__dict__["_bppsa_left"] = left
    fast.__dict__["report"] = Report(left)
    if not isinstance(fast, Recurrent):  # which keeps its own
        fast.register_forward_pre_hook(begin_report)
        fast.register_forward_hook(end_report, always_call=True)
    if fallback == "inductor":
        from bppsa._backend import backend  # Dynamo takes a second to import

        fast.compile(backend=backend, options={"fallback": fallback})
    return fast


def begin_report(module: nn.Module, args: Any) -> None:
    taken = list(module.__dict__.get("_bppsa_left", ()))
    module.__dict__["report"] = Report(taken)
    _calls.push(taken)


def end_report(module: nn.Module, args: Any, output: Any) -> None:
    _calls.pop()


def explain(
    model: nn.Module | Callable[..., Any], *inputs: Any, strategy: str = "auto", fallback: str = "eager"
) -> Report:
    """Run `model(*inputs)` once as `compile(model, ...)` would and tell what was found, chosen and left alone, and why.

    Buffers and the random state are as before afterwards. `model` may also be a function that calls `bppsa.scan`.
    """
    check(strategy, fallback)
    if not isinstance(model, nn.Module):
        with _calls.collecting() as taken, torch.random.fork_rng():
            model(*inputs)
        return Report(taken)
    fast = compile(model, strategy=strategy)
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with _calls.collecting(), torch.random.fork_rng():
            fast(*inputs)
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
    return Report(fast.__dict__["report"].decisions)


def scan(cell: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any, *, reverse: bool = False) -> tuple[Any, Any]:
    if torch.compiler.is_compiling():
        from bppsa import _backend

        return _backend.scan(cell, carry, xs, reverse)
    return _scan.scan(cell, carry, xs, reverse=reverse)


scan.__doc__ = _scan.scan.__doc__


def check(strategy: str, fallback: str) -> None:
    if strategy not in STRATEGIES:
        raise StrategyError(f"unknown strategy {strategy!r}; known: {', '.join(STRATEGIES)}")
    if fallback not in FALLBACKS:
        raise StrategyError(f"unknown fallback {fallback!r}; known: {', '.join(FALLBACKS)}")
