"""One call of what has a loop: by its plan, or as PyTorch runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from bppsa.decisions import Decision
from bppsa.errors import Reason, Unsupported
from bppsa.frontend.call_log import collecting, explaining, note
from bppsa.frontend.loops.key import call_of, size_of, unusual
from bppsa.frontend.loops.plans import checked, first_call
from bppsa.frontend.loops.state import NEW_KINDS, LeftCall, LoopState
from bppsa.frontend.trials import is_tried
from bppsa.runtime.recurrent.check import asked
from bppsa.runtime.untraced import untraced


@untraced
def call(root: Any, plain: Callable[..., Any], state: LoopState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """root: a module, a function or a bound method, all that it reads included. plain: what PyTorch runs."""
    if is_tried():
        return plain(*args, **kwargs)
    state.look_at(size_of((args, kwargs)))
    if state.is_closed:
        return by_pytorch(partial(plain, *args, **kwargs), state.last)
    described = unusual() or call_of(root, args, kwargs)
    if isinstance(described, Reason):
        if state.plans or state.is_part:
            reason = replace(described, path=place_of(root)) if state.is_part else described
            note(Decision(state.path, "loop", "pytorch", str(reason)))
        return plain(*args, **kwargs)
    plan = state.find(described.key)
    if plan is None and state.waits(described.key):
        return by_pytorch(
            partial(plain, *args, **kwargs), LeftCall((Decision(state.path, "loop", "pytorch", str(NEW_KINDS)),))
        )
    if plan is None:
        result, plan = first_call(root, plain, args, kwargs, described, state.path)
        state.keep(described.key, plan, described.environment.opaque)
        note(*(plan.decisions if isinstance(plan, LeftCall) else (*plan.scans, *plan.left)))
        return result
    if isinstance(plan, LeftCall):
        state.leave(plan)
        return by_pytorch(partial(plain, *args, **kwargs), plan)
    state.idle = 0
    note(*plan.left)
    if asked():
        note(*plan.scans)
        return checked(plan, plain, args, kwargs, described)
    try:
        return plan.result(described)
    except Unsupported as unsupported:
        refusal = str(unsupported.reason)
    note(Decision(state.path, "loop", "pytorch", refusal))
    return plain(*args, **kwargs)  # where an error is PyTorch's alone


def place_of(function: Any) -> str:
    """The line of a loop that is a function of its own."""
    code = getattr(function, "__func__", function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def by_pytorch(run: Callable[[], Any], left: LeftCall) -> Any:
    """Runs what is left alone, and tells so where none of the loops within it is a scan."""
    with collecting(explained=explaining()) as taken:
        result = run()
    if not any(decision.kind == "loop" and decision.strategy != "pytorch" for decision in taken):
        note(*left.decisions)
    return result
