"""Newton's forward in a call: whether "auto" may try it, and what is told of it afterwards."""

from __future__ import annotations

from dataclasses import replace

from bppsa.decisions import Decision, warn_once
from bppsa.plan.forward import RESTING, Forward, forward_of
from bppsa.runtime.recurrent.newton import NewtonHistory, Solver


def open_forward(asked: Forward, memory: NewtonHistory) -> Forward:
    """An "auto" without it for some calls after Newton's iteration has failed."""
    return RESTING if asked.name == "auto" and memory.rests() else asked


def solver_of(forward: str | Forward, memory: NewtonHistory) -> Solver | None:
    chosen = forward_of(forward)
    return Solver(chosen, memory) if chosen.name == "newton" else None


def told(decision: Decision, memory: NewtonHistory, solver: Solver | None, *, rested: bool) -> Decision:
    """Adds to a decision what Newton's iteration did: how often it iterated, how exact it got, how often it failed; or
    that "auto" rested. Called once when a call is over."""
    if solver is None:
        if not rested or decision.strategy == "pytorch":
            return decision
        why = f"Newton's iteration did not converge, and is tried again after {memory.resting} more calls"
        return replace(decision, reason=f"{decision.reason}; forward {decision.forward}: {why}")
    outcomes = solver.outcomes
    failed = [outcome for outcome in outcomes if outcome.failure]
    memory.note(failed=bool(failed))
    numbers = {
        "iterations": max(outcome.iterations for outcome in outcomes),
        "residual": max(outcome.residual for outcome in outcomes),
        "fallbacks": len(failed),
    }
    reason = decision.reason
    if failed:
        reason += f", but {len(failed)} of {len(outcomes)} passes ran step by step: {failed[0].failure}"
    return replace(decision, reason=reason, numbers={**decision.numbers, **numbers})


def warn_of(solver: Solver | None) -> None:
    """Warns where the iteration failed in a graph, which has no report."""
    for outcome in solver.outcomes if solver else ():
        if outcome.failure:
            warn_once(f"bppsa: a forward ran step by step, not by Newton's iteration: {outcome.failure}")
