"""Calls that PyTorch runs and that are watched: the first of a kind, from which its plan is made, and with
BPPSA_CHECK=1 each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bppsa.common.graph import tensors_in
from bppsa.decisions import warn_once
from bppsa.errors import BuildError, GradientError, Reason, Unsupported, first_line
from bppsa.frontend.call_log import note, unnoted
from bppsa.frontend.cell.plans import FAULTS
from bppsa.frontend.loops.changing import settled
from bppsa.frontend.loops.key import LoopCall
from bppsa.frontend.loops.left import left, not_repeated
from bppsa.frontend.loops.loop_plan import LoopPlan, errors_refused
from bppsa.frontend.loops.plans import FirstCall, all_true, planned
from bppsa.frontend.loops.scans.trust import believe
from bppsa.frontend.loops.scans.verify import Differs, OtherNumbers
from bppsa.frontend.loops.state import LeftCall
from bppsa.frontend.trials import trial
from bppsa.fxpasses.environment.going_on import iterators
from bppsa.fxpasses.environment.libraries import owner
from bppsa.fxpasses.environment.state import StatePlace, changed_state, counters, have_other_names, now_at, put
from bppsa.fxpasses.environment.trail import own_attributes
from bppsa.fxpasses.reroll.find import Repetition, is_repeated
from bppsa.fxpasses.reroll.log.memory import LIVES_ON
from bppsa.fxpasses.reroll.log.numbers import Arithmetic
from bppsa.fxpasses.reroll.log.record import Logger
from bppsa.fxpasses.reroll.log.unseen import watched
from bppsa.runtime.recurrent.check import asked

MEND = "report it with what was called; meanwhile compile with loops=False"


def first_call(first: FirstCall) -> tuple[Any, LoopPlan | LeftCall]:
    """What the call returns, as PyTorch runs it, and the plan for others like it. A plan that is for any of the numbers
    that are followed has `arithmetic`."""
    arithmetic = Arithmetic()
    args, kwargs = (first.args, first.kwargs) if first.follow is None else first.follow(arithmetic)
    logger = Logger(first.described.tensors, arithmetic)
    before, written = torch.get_rng_state(), versions(first.described.tensors)
    state: Mapping[StatePlace, tuple[Any, Any]] = {}
    trail, holds = first.described.environment.trail, owner(first.root)
    counted: Mapping[StatePlace, int] = {}
    uncounted = counters(trail, holds)
    opaque = [refer() for refer in first.described.environment.opaque]
    try:
        with (
            unnoted() as within,
            trial() as tried,
            watched(first.root, logger.refuse, opaque, arithmetic, logger),
            logger,
        ):
            result = first.plain(*args, **kwargs)
            state = changed_state(trail, holds)
            counted = counters(trail, holds)
            put(trail, holds, state, [then for then, _ in state.values()])
            put(trail, holds, uncounted, uncounted.values())
        result = settled(result, arithmetic)
        check_unchanged(logger, first)
    finally:
        put(trail, holds, state, [now for _, now in state.values()])
        put(trail, holds, counted, counted.values())
    made = [result, *(now for _, now in state.values())]
    if have_other_names(made, first.described.environment.seen, (first.args, first.kwargs)):
        logger.refuse(Reason("returns or keeps a list, dict or deque that has another name", mend="give a copy"))
    if tried.has_scan:  # whose steps are no loop; those of the user's are looked at alone
        plan: LoopPlan | LeftCall = LeftCall((), around_others=True)
    else:
        plan = plan_or_left(logger, first, result, state, arithmetic, before, tried.has_inner)
    if isinstance(plan, LeftCall):
        note(*within)
        refused_to_write = logger.log.refusal is not None and logger.log.refusal.what == LIVES_ON
        writes = refused_to_write and versions(first.described.tensors) != written
        return result, replace(plan, begins=trail.has_grown(holds), writes=writes)
    added = ((place, now - uncounted[place]) for place, now in counted.items())
    return result, replace(plan, counts=tuple((place, number) for place, number in added if number))


def versions(tensors: Sequence[Tensor]) -> list[int]:
    """How often each was changed in place, where that is counted."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def plan_or_left(
    logger: Logger,
    first: FirstCall,
    result: Any,
    state: Mapping[StatePlace, tuple[Any, Any]],
    arithmetic: Arithmetic,
    before: Tensor,
    has_inner: bool,
) -> LoopPlan | LeftCall:
    """The plan for calls like one that was logged, or what is told of it where PyTorch runs them. has_inner: as
    `LoggedCall` has it."""
    log, path = logger.log, first.path
    if not (log.branches or is_repeated(log)):
        return not_repeated(path, log, has_inner)
    found: list[Repetition] = []
    try:
        return planned(logger, first, result, state, arithmetic, found, before)
    except Unsupported as unsupported:
        raise_if_asked(unsupported)
        return left(path, log, found, unsupported.reason, has_inner and log.refusal is not None)
    except BuildError as error:
        return left(path, log, found, Reason(first_line(error)))
    except FAULTS as error:  # the call has its result, and the fault is told aloud
        if asked():
            raise
        what = f"bppsa fails to plan it: {type(error).__name__}: {first_line(error)}"
        warn_once(f"bppsa leaves the loops of {path or 'the model'} to PyTorch: {what}; please report this")
        return left(path, log, found, Reason(what, mend="please report this"))


def check_unchanged(logger: Logger, first: FirstCall) -> None:
    """Has the log refused where the call has changed what it was given or reads."""
    call = first.described
    if not call.environment.trail.holds(owner(first.root)):
        logger.refuse(Reason("changes an attribute, a global name or what they hold", mend="keep state in the carry"))
    if iterators(call.environment.opaque, behind_call=True):
        logger.refuse(Reason("reads an iterator, which goes on from call to call", mend="hold a list"))
    now, spec = pytree.tree_flatten((first.args, first.kwargs))
    if spec != call.spec or any(one is not other for one, other in zip(now, call.leaves, strict=True)):
        logger.refuse(Reason("changes a container that it was given"))
    if any(map(own_attributes, call.tensors)):
        logger.refuse(Reason("gives attributes to a tensor that it was given"))


def raise_if_asked(unsupported: Unsupported) -> None:
    """Raises GradientError with BPPSA_CHECK=1, for a plan that was made and computes something else: a bug of ours."""
    if isinstance(unsupported, Differs) and asked():
        raise GradientError(f"a loop that runs as a scan: {unsupported}; {MEND}") from unsupported


def checked(
    plan: LoopPlan,
    root: Any,
    plain: Callable[..., Any],
    args: Any,
    kwargs: Any,
    call: LoopCall,
    numbers: Sequence[float] = (),
) -> Any:
    """What PyTorch gives, after a run of the plan beside it. Raises GradientError where they differ."""
    before = torch.get_rng_state()
    result = plain(*args, **kwargs)
    try:
        with errors_refused():
            given = plan.tensors(call, numbers)
        if plan.truths:
            try_out(plan, call, numbers, before)
    except Unsupported:
        return result
    try:
        state = now_at(call.environment.trail, owner(root), plan.state)
        believe(plan.run, [*tensors_in((result, state)), *all_true(plan.truths, call.device)], given, before)
    except Unsupported as unsupported:
        if plan.doubted and isinstance(unsupported, OtherNumbers):
            return result
        raise_if_asked(unsupported)
        if not plan.picks:
            raise
    return result


def try_out(plan: LoopPlan, call: LoopCall, numbers: Sequence[float], before: Tensor) -> None:
    """Raises `Unsupported` where the plan does not take the call. before: the state of the random numbers before it."""
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    try:
        plan.result(call, numbers)
    finally:
        torch.set_rng_state(after)
