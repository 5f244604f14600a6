"""One call of what has a loop: by its plan, or as PyTorch runs it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from bppsa.codegen.cpu.progress import looking_at_loop
from bppsa.common.process.collector import collector_paused
from bppsa.decisions import Decision
from bppsa.errors import BppsaError, Reason, Unsupported, first_line
from bppsa.frontend.call_log import collecting, explaining, note, unnoted
from bppsa.frontend.loops.changing import numbers_of, without_numbers
from bppsa.frontend.loops.first import checked, first_call
from bppsa.frontend.loops.key import LoopCall, call_of, holds_objects, size_of, unusual
from bppsa.frontend.loops.loop_plan import LoopPlan
from bppsa.frontend.loops.plans import FirstCall
from bppsa.frontend.loops.state import LONG_S, NEW_KINDS, SLOW_S, SLOWER, LeftCall, LoopState
from bppsa.frontend.rewritten import kind_of
from bppsa.frontend.trials import is_tried, trial
from bppsa.fxpasses.environment.libraries import owner
from bppsa.fxpasses.environment.state import count, put
from bppsa.fxpasses.reroll.log.lines import loops
from bppsa.runtime.recurrent.check import asked
from bppsa.runtime.untraced import untraced


@untraced
def call(root: Any, plain: Callable[..., Any], state: LoopState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """root: a module, a function or a bound method, all that it reads included. plain: what PyTorch runs."""
    if is_tried():
        return plain(*args, **kwargs)
    run = partial(plain, *args, **kwargs)
    state.look_at(size_of((args, kwargs)))
    if state.is_closed:
        return by_pytorch(run, state.last)
    begun = time.perf_counter()
    described = unusual() or call_of(root, args, kwargs)
    asked_s = time.perf_counter() - begun
    if isinstance(described, Reason):
        reason = replace(described, path=place_of(root)) if state.is_part else described
        refused = left_for(state, reason)
        if holds_objects(args, kwargs):
            state.tell(refused)  # from the next call on each loop is looked at alone, and reads what it needs of them
        return by_pytorch(run, refused)
    plan, key, numbers, changes = state.find(described.key), described.key, None, None
    given = numbers_of(described, args, kwargs, state.is_part) if plan is None else None
    if given is not None:
        changes = state.changing(given)
        numbers = changes.narrowed(given)
    if numbers is not None:
        plan, key = state.find(numbers.key), numbers.key
    values = numbers.values if numbers is not None else []
    if plan is None and not state.is_part and state.has_moved(without_numbers(described.key), described.key):
        return run()  # from the next call on Python runs what is around the loops, and reads them
    if plan is None and state.is_tried:
        state.leave(state.last)
        return by_pytorch(run, state.last)
    if plan is None and state.waits(key):
        return by_pytorch(run, left_for(state, NEW_KINDS))
    if plan is None:
        follow = None
        if numbers is not None and changes is not None and not changes.tried:
            changes.tried, follow = True, partial(numbers.following, args, kwargs, state.is_part)
        first = FirstCall(root, plain, args, kwargs, described, state.path, state.shared, follow, values)
        return planning(first, state, key)
    if isinstance(plan, LeftCall):
        state.leave(plan, asked_s)
        return by_pytorch(run, plan)
    if asked_s > SLOW_S and plan.times.is_due and described.device.type == "cpu":  # whose work a clock sees
        return compared(run, plan, state, asked_s)
    state.idle = 0
    note(*plan.left)
    if asked():
        note(*plan.scans)
        return checked(plan, root, plain, args, kwargs, described, values)
    try:
        begun = time.perf_counter()
        result = by_plan(plan, root, described, values)
        ran_s = time.perf_counter() - begun
        if asked_s > max(SLOW_S, SLOWER * ran_s):
            plan.times.add(asked_s, ran_s)
        return result
    except Unsupported as unsupported:
        left = left_for(state, unsupported.reason)
    except (RuntimeError, IndexError) as error:  # as of an index out of range: PyTorch raises it at the user's line
        if isinstance(error, BppsaError):
            raise
        left = left_for(state, first_line(error))
    if not plan.runs.pay:
        state.keep(key, left, described.environment.opaque)
    note(*left.decisions)
    return run()  # where an error is PyTorch's alone


def planning(first: FirstCall, state: LoopState, key: Hashable) -> Any:
    """What the first call of a kind returns. Its plan is kept, under the key where it is for any numbers."""
    begun = time.perf_counter()
    with looking_at_loop(state.place or loop_of(first.root)), collector_paused():
        result, plan = first_call(first)
    is_general = isinstance(plan, LoopPlan) and plan.is_for_any_numbers
    state.keep(key if is_general else first.described.key, plan, first.described.environment.opaque)
    if isinstance(plan, LeftCall):
        state.in_vain += int((time.perf_counter() - begun) / LONG_S)
    note(*(plan.decisions if isinstance(plan, LeftCall) else (*plan.scans, *plan.left)))
    return result


def compared(run: Callable[[], Any], plan: LoopPlan, state: LoopState, asked_s: float) -> Any:
    """A call as PyTorch runs it, which shows whether the plan gains what it takes to find."""
    begun = time.perf_counter()
    with trial():
        result = run()
    gains = plan.times.gains(time.perf_counter() - begun)
    what = f"of a kind that takes {asked_s * 1e3:.0f} ms to find: PyTorch runs this one call, to see what a plan gains"
    note(*left_for(state, what).decisions)
    if gains is not None:
        state.weigh(gains, asked_s)
    return result


def by_plan(plan: LoopPlan, root: Any, described: LoopCall, values: Sequence[float]) -> Any:
    with unnoted() as within:
        result, kept = plan.result(described, values)
    trail, holds = described.environment.trail, owner(root)
    put(trail, holds, plan.state, kept)
    count(trail, holds, plan.counts)
    note(*within)
    return result


def left_for(state: LoopState, reason: Reason | str) -> LeftCall:
    return LeftCall((Decision(state.path, "loop", "pytorch", str(reason)),))


def loop_of(root: Any) -> str:
    """The line of its first loop, or where it begins."""
    function = inspect.unwrap(getattr(kind_of(root), "forward", root.forward)) if isinstance(root, nn.Module) else root
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return type(root).__name__
    line = min((first for first, _ in loops(code)), default=code.co_firstlineno)
    return f"{Path(code.co_filename).name}:{line}"


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
