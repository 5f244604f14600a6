"""Which forward runs a call, and what is told of it: the counterpart of the strategy, which is the backward's."""

from __future__ import annotations

from dataclasses import replace

from bppsa.plan.forward import Forward
from bppsa.plan.strategy import Strategy
from bppsa.report import Decision, warn_once
from bppsa.runtime.newton import Memory, Solver

# The strategy beside a parallel forward where none was asked for: PyTorch has no such forward to leave the call to.
BESIDE = {"cpu": Strategy("sequential"), "cuda": Strategy("chunked")}


def solver_of(forward: Forward, memory: Memory) -> Solver | None:
    return Solver(forward, memory) if forward.name == "newton" else None


def beside(forward: Forward, strategy: Strategy, device: str) -> Strategy:
    return BESIDE[device] if forward.name == "newton" and strategy.name == "auto" else strategy


def told(decision: Decision, asked: Forward, why: str, solver: Solver | None) -> Decision:
    """With which forward ran and, of Newton's, how often it iterated, how exact it got, how often it failed."""
    if asked.name == "sequential":
        return decision
    if solver is None:
        return replace(decision, reason=f"{decision.reason}; forward sequential: {why}")
    outcomes = solver.outcomes
    failed = [outcome for outcome in outcomes if outcome.failure]
    numbers = {
        "iterations": max(outcome.iterations for outcome in outcomes),
        "residual": max(outcome.residual for outcome in outcomes),
        "fallbacks": len(failed),
    }
    reason = f"{decision.reason}; forward {solver.forward}: {why}"
    if failed:
        reason += f", but {len(failed)} of {len(outcomes)} passes ran step by step: {failed[0].failure}"
    return replace(decision, reason=reason, numbers={**decision.numbers, **numbers})


def warn_of(solver: Solver | None) -> None:
    """For graphs, which have no report."""
    for outcome in solver.outcomes if solver else ():
        if outcome.failure:
            warn_once(f"bppsa: a forward ran step by step, not by Newton's iteration: {outcome.failure}")
