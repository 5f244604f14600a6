"""A plan for calls like one that was logged: its loops found, fused, and believed after a run beside PyTorch's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bppsa.common.graph import tensors_in
from bppsa.decisions import warn_once
from bppsa.errors import BuildError, GradientError, Reason, Unsupported, first_line, kind_of
from bppsa.frontend.call_log import note, unnoted
from bppsa.frontend.cell.plans import FAULTS
from bppsa.frontend.loops.changing import settled
from bppsa.frontend.loops.key import LoopCall
from bppsa.frontend.loops.left import left, not_repeated
from bppsa.frontend.loops.loop_plan import TENSOR, LoopPlan, errors_refused
from bppsa.frontend.loops.names import names_of
from bppsa.frontend.loops.scans.shared import SharedSteps, are_of, shape_of
from bppsa.frontend.loops.scans.trust import Witness, believe, is_trusted_in_double
from bppsa.frontend.loops.scans.verify import Differs, OtherNumbers
from bppsa.frontend.loops.state import LeftCall
from bppsa.frontend.loops.told import by_loop, named, ops_beside, refusals, told_of
from bppsa.frontend.ordinary import is_plain
from bppsa.frontend.plan_cache import place
from bppsa.frontend.trials import trial
from bppsa.fxpasses.environment.key import SIMPLE
from bppsa.fxpasses.environment.libraries import owner
from bppsa.fxpasses.environment.state import StatePlace, changed_state, have_other_names, now_at, put
from bppsa.fxpasses.environment.trail import own_attributes
from bppsa.fxpasses.recording.capture import check_gradients
from bppsa.fxpasses.reroll.find import Repetition, is_repeated, reroll
from bppsa.fxpasses.reroll.log.numbers import Arithmetic
from bppsa.fxpasses.reroll.log.ops import LoggedValue, draws
from bppsa.fxpasses.reroll.log.record import Logger
from bppsa.fxpasses.reroll.log.replay import Replay
from bppsa.fxpasses.reroll.log.unseen import watched
from bppsa.fxpasses.reroll.program import LoopProgram, layout_of, program_of
from bppsa.fxpasses.reroll.repetition.unlike import unlike
from bppsa.fxpasses.reroll.repetition.written import loop_over_time
from bppsa.fxpasses.reroll.truths import read_truths
from bppsa.runtime.recurrent.check import asked

MEND = "report it with what was called; meanwhile compile with loops=False"


@dataclass(frozen=True)
class FirstCall:
    """A call whose kind has no plan. root: all that it reads beside its arguments; plain: what PyTorch runs; described:
    its kind; path, shared: what the state of its module has; follow: gives the arguments with numbers that are
    followed, which are `numbers`."""

    root: Any
    plain: Callable[..., Any]
    args: Any
    kwargs: Any
    described: LoopCall
    path: str
    shared: SharedSteps
    follow: Callable[[Arithmetic], Any] | None = None
    numbers: Sequence[float] = ()


def first_call(first: FirstCall) -> tuple[Any, LoopPlan | LeftCall]:
    """What the call returns, as PyTorch runs it, and the plan for others like it. A plan that is for any of the numbers
    that are followed has `arithmetic`."""
    arithmetic, path = Arithmetic(), first.path
    args, kwargs = (first.args, first.kwargs) if first.follow is None else first.follow(arithmetic)
    logger = Logger(first.described.tensors, arithmetic)
    before = torch.get_rng_state()
    state: Mapping[StatePlace, tuple[Any, Any]] = {}
    trail, holds = first.described.environment.trail, owner(first.root)
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
            put(trail, holds, state, [then for then, _ in state.values()])
        result = settled(result, arithmetic)
        check_unchanged(logger, first)
    finally:
        put(trail, holds, state, [now for _, now in state.values()])
    made = [result, *(now for _, now in state.values())]
    if have_other_names(made, first.described.environment.seen, (first.args, first.kwargs)):
        logger.refuse(Reason("returns or keeps a list, dict or deque that has another name", mend="give a copy"))
    if not (logger.log.branches or is_repeated(logger.log)):
        note(*within)
        return result, not_repeated(path, logger.log, tried.has_inner)
    found: list[Repetition] = []
    try:
        plan = planned(logger, first, result, state, arithmetic, found, before)
    except Unsupported as unsupported:
        raise_if_asked(unsupported)
        note(*within)
        return result, left(
            path, logger.log, found, unsupported.reason, tried.has_inner and logger.log.refusal is not None
        )
    except BuildError as error:
        note(*within)
        return result, left(path, logger.log, found, Reason(first_line(error)))
    except FAULTS as error:  # the call has its result, and the fault is told aloud
        if asked():
            raise
        what = f"bppsa fails to plan it: {type(error).__name__}: {first_line(error)}"
        warn_once(f"bppsa leaves the loops of {path or 'the model'} to PyTorch: {what}; please report this")
        note(*within)
        return result, left(path, logger.log, found, Reason(what, mend="please report this"))
    return result, plan


def raise_if_asked(unsupported: Unsupported) -> None:
    """With BPPSA_CHECK=1, for a plan that was made and computes something else: that is a bug of ours."""
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
        believe(plan.run, [*tensors_in((result, state)), *all_true(plan.truths)], given, before)
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


def all_true(count: int) -> list[Tensor]:
    return [torch.tensor(True) for _ in range(count)]


def check_unchanged(logger: Logger, first: FirstCall) -> None:
    call = first.described
    if not call.environment.trail.holds(owner(first.root)):
        logger.refuse(Reason("changes an attribute, a global name or what they hold", mend="keep state in the carry"))
    if any(hasattr(type(refer()), "__next__") for refer in call.environment.opaque):
        logger.refuse(Reason("reads an iterator, which goes on from call to call", mend="hold a list"))
    now, spec = pytree.tree_flatten((first.args, first.kwargs))
    if spec != call.spec or any(one is not other for one, other in zip(now, call.leaves, strict=True)):
        logger.refuse(Reason("changes a container that it was given"))
    if any(map(own_attributes, call.tensors)):
        logger.refuse(Reason("gives attributes to a tensor that it was given"))


def planned(
    logger: Logger,
    first: FirstCall,
    result: Any,
    state: Mapping[StatePlace, tuple[Any, Any]],
    arithmetic: Arithmetic,
    found: list[Repetition],
    before: Tensor,
) -> LoopPlan:
    """found: what repeats itself goes there. before: the state of the random numbers before the call."""
    log, call, shared, numbers = logger.log, first.described, first.shared, first.numbers
    returns = result, [now for _, now in state.values()]
    leaves, spec = pytree.tree_flatten(returns)
    with logger.refusing():
        logger.end_functions()
    if log.refusal is not None:
        raise Unsupported(log.refusal)
    others = tuple(TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    for leaf in others:
        if leaf is not TENSOR and not isinstance(leaf, SIMPLE):
            raise Unsupported(f"returns {kind_of(leaf)}", mend="return tensors, numbers, containers")
    tensors = tensors_in(leaves)
    captured = [value.given.captured for value in log.captured if value.given and value.given.captured is not None]
    check_gradients(tensors, [*captured, *call.tensors], logger.own.nodes)
    made = [returned(logger, tensor, call) for tensor in tensors]  # which may write ops down yet
    truths = read_truths(log)
    made, tensors = [*made, *truths], [*tensors, *all_true(len(truths))]
    replay, random = Replay(log), before if any(map(draws, log.ops)) else None
    cells = list(shared.cells.values())
    rerolled = reroll(log, made, shared.fuse, shared.numbers)
    found += rerolled.found
    if all(one.scan is None for one in found):
        raise Unsupported(found[0].reason if found and found[0].reason else unlike(loop_over_time(log.ops)))
    alone = zip(rerolled.result, tensors, are_alone(tensors, call), strict=True)
    layouts = {value: layout_of(tensor) for value, tensor, is_alone in alone if is_alone}
    program = program_of(log, rerolled.ops, rerolled.result, torch.is_grad_enabled(), layouts)
    fused = [one for one in found if one.scan is not None]
    scans: list[Any] = [one.scan.target for one in fused if one.scan is not None]
    picks = log.raises or bool(truths) or any(scan.plan.refuses for scan in scans)
    plan = LoopPlan(
        run=program.run,
        arguments=program.arguments,
        places=places(program, call),
        literals=program.literals,
        numbers=program.numbers,
        arithmetic=arithmetic,
        values=tuple(numbers),
        spec=spec,
        others=others,
        left=refusals(found, first.path),
        picks=picks,
        is_shared=are_of(scans, cells),
        truths=len(truths),
        state=tuple(state),
        draws=random is not None,
    )
    values = arithmetic.values(numbers) if arithmetic.terms else []
    given = {value: tensor_of(value, call, values) for value in replay.given}
    taken = plan.tensors(call, numbers)
    named_as = partial(names_of, result, root=first.root, plain=first.plain, args=first.args, kwargs=first.kwargs)
    witness = Witness(program, replay, made, given, named_as(list(given.values())))
    shape, within = shape_of(program.run, (plan.arguments, plan.places, plan.numbers, len(plan.literals), spec))
    known = shared.knows(shape, within)
    doubted = is_trusted_in_double(witness, plan.run, tensors, taken, named_as(taken), random, known)
    if not doubted:
        shared.trust(shape, within)
    beside = ops_beside(program.run, scans) // len(scans)
    decided = by_loop(
        fused,
        [
            told_of(one, scan.decision, named(first.path, one), beside, doubted)
            for one, scan in zip(fused, scans, strict=True)
        ],
    )
    for scan, decision in zip(scans, decided, strict=True):
        scan.decision = decision
    return replace(plan, scans=tuple(filter(None, decided)), doubted=doubted)


def are_alone(tensors: Sequence[Tensor], call: LoopCall) -> Iterator[bool]:
    """Tells for each tensor that is returned whether nobody sees it as a view: it is none, or one of memory that no
    other of the call's tensors has."""
    held = Counter(t.untyped_storage()._cdata for t in (*tensors, *call.tensors, *call.environment.tensors))
    for tensor in tensors:
        yield not tensor._is_view() or held[tensor.untyped_storage()._cdata] == 1


def tensor_of(value: LoggedValue, call: LoopCall, numbers: Sequence[float]) -> Tensor:
    given = value.given
    assert given is not None
    if given.number >= 0:
        return torch.tensor(numbers[given.number], dtype=value.dtype)
    found = given.captured if given.captured is not None else given.literal
    return call.tensors[given.argument] if found is None else found


def returned(logger: Logger, tensor: Tensor, call: LoopCall) -> LoggedValue:
    value = logger.memory.find(tensor, returned=True)
    if value is None:
        raise Unsupported("returns a tensor that none of its ops has made")
    if tensor.untyped_storage()._cdata in logger.begun:
        raise Unsupported("returns a tensor that it makes require a gradient", mend="do it outside of the loop")
    if value.given is not None and value.given.number < 0 and tensor_of(value, call, ()) is not tensor:
        spec = (None, (None,) * tensor.dim()), ()  # a view of all of it
        return logger.emit(torch.ops.aten.expand.default, [value, *tensor.shape], (spec, value))
    if value.op is not None and own_attributes(tensor):
        what = f"returns a tensor with attributes of its own ({', '.join(own_attributes(tensor))})"
        raise Unsupported(what, mend="return them beside it")
    return value


def places(program: LoopProgram, call: LoopCall) -> tuple[int, ...]:
    found = []
    for tensor in program.captured:
        at = place(tensor, call.environment.tensors, "module")
        if not isinstance(at, int) or not (is_plain(tensor) and tensor.is_cpu):
            what = f"reads a tensor of shape {list(tensor.shape)} in a way that cannot be followed"
            raise Unsupported(what, mend="make it an attribute")
        if tensor._backward_hooks:
            raise Unsupported("reads a tensor with hooks on its gradient")
        found.append(at)
    return tuple(found)
