"""Makes the plan for calls like one that was logged: its loops are found, fused, and believed after a run beside
PyTorch's."""

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
from bppsa.errors import Unsupported, kind_of
from bppsa.frontend.loops.key import LoopCall
from bppsa.frontend.loops.loop_plan import TENSOR, LoopPlan
from bppsa.frontend.loops.scans.names import names_of
from bppsa.frontend.loops.scans.shared import SharedSteps, are_of, shape_of
from bppsa.frontend.loops.scans.trust import Witness, is_trusted_in_double
from bppsa.frontend.loops.told import refusals, tell_scans
from bppsa.frontend.ordinary import is_plain
from bppsa.frontend.plan_cache import place
from bppsa.fxpasses.environment.key import SIMPLE
from bppsa.fxpasses.environment.state import StatePlace
from bppsa.fxpasses.environment.trail import own_attributes
from bppsa.fxpasses.recording.capture import check_gradients
from bppsa.fxpasses.reroll.find import Repetition, reroll
from bppsa.fxpasses.reroll.log.numbers import Arithmetic
from bppsa.fxpasses.reroll.log.ops import LoggedValue, draws
from bppsa.fxpasses.reroll.log.record import Logger
from bppsa.fxpasses.reroll.log.replay import Replay
from bppsa.fxpasses.reroll.program import LoopProgram, layout_of, program_of
from bppsa.fxpasses.reroll.repetition.unlike import unlike
from bppsa.fxpasses.reroll.repetition.written import loop_over_time
from bppsa.fxpasses.reroll.truths import read_truths


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


def all_true(count: int, device: torch.device) -> list[Tensor]:
    return [torch.tensor(True, device=device) for _ in range(count)]


def planned(
    logger: Logger,
    first: FirstCall,
    result: Any,
    state: Mapping[StatePlace, tuple[Any, Any]],
    arithmetic: Arithmetic,
    found: list[Repetition],
    before: Tensor,
) -> LoopPlan:
    """Makes the plan of calls like the first one, which returned `result`. state: what it changed, as it was and is
    now. found: what repeats itself goes there. before: the state of the random numbers before the call. Raises
    `Unsupported` where there is none."""
    log, call, shared = logger.log, first.described, first.shared
    leaves, spec = pytree.tree_flatten((result, [now for _, now in state.values()]))
    made = values_of(logger, leaves, call)  # which may write ops down yet
    truths = read_truths(log)
    made, tensors = [*made, *truths], [*tensors_in(leaves), *all_true(len(truths), call.device)]
    replay, random = Replay(log), before if any(map(draws, log.ops)) else None
    cells = list(shared.cells.values())
    rerolled = reroll(log, made, partial(shared.fuse, device=call.device), shared.numbers)
    found += rerolled.found
    if all(one.scan is None for one in found):
        raise Unsupported(found[0].reason if found and found[0].reason else unlike(loop_over_time(log.ops)))
    alone = zip(rerolled.result, tensors, are_alone(tensors, call), strict=True)
    layouts = {value: layout_of(tensor) for value, tensor, is_alone in alone if is_alone}
    program = program_of(log, rerolled.ops, rerolled.result, layouts)
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
        values=tuple(first.numbers),
        spec=spec,
        others=tuple(TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves),
        left=refusals(found, first.path),
        picks=picks,
        is_shared=are_of(scans, cells),
        truths=len(truths),
        state=tuple(state),
        draws=random is not None,
    )
    doubted = is_doubted(plan, program, replay, made, tensors, first, result, random)
    return replace(plan, scans=tell_scans(fused, program.run, first.path, doubted), doubted=doubted)


def values_of(logger: Logger, leaves: Sequence[Any], call: LoopCall) -> list[LoggedValue]:
    """What stands in the log for the tensors among the leaves, which the call returned. Raises `Unsupported` where
    something was refused, or cannot be returned."""
    with logger.refusing():
        logger.end_functions()
    log, tensors = logger.log, tensors_in(leaves)
    if log.refusal is not None:
        raise Unsupported(log.refusal)
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *SIMPLE)):
            raise Unsupported(f"returns {kind_of(leaf)}", mend="return tensors, numbers, containers")
    captured = [value.given.captured for value in log.captured if value.given and value.given.captured is not None]
    check_gradients(tensors, [*captured, *call.tensors], logger.own.nodes)
    return [returned(logger, tensor, call) for tensor in tensors]


def is_doubted(
    plan: LoopPlan,
    program: LoopProgram,
    replay: Replay,
    made: Sequence[LoggedValue],
    tensors: Sequence[Tensor],
    first: FirstCall,
    result: Any,
    random: Tensor | None,
) -> bool:
    """Whether it took float64 to trust the plan. made, tensors: what stands for what the call returned, and that
    itself. random: the state of the random numbers before a call that draws. Raises `Unsupported` where it is not
    trusted."""
    call, shared, arithmetic = first.described, first.shared, plan.arithmetic
    values = arithmetic.values(first.numbers) if arithmetic.terms else []
    given = {value: tensor_of(value, call, values) for value in replay.given}
    taken = plan.tensors(call, first.numbers)
    named_as = partial(names_of, result, root=first.root, plain=first.plain, args=first.args, kwargs=first.kwargs)
    witness = Witness(program, replay, made, given, named_as(list(given.values())))
    shape, within = shape_of(program.run, (plan.arguments, plan.places, plan.numbers, len(plan.literals), plan.spec))
    known = shared.knows(shape, within)
    doubted = is_trusted_in_double(witness, plan.run, tensors, taken, named_as(taken), random, known)
    if not doubted:
        shared.trust(shape, within)
    return doubted


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
        return torch.tensor(numbers[given.number], dtype=value.dtype, device=call.device)
    found = given.captured if given.captured is not None else given.literal
    return call.tensors[given.argument] if found is None else found


def returned(logger: Logger, tensor: Tensor, call: LoopCall) -> LoggedValue:
    value = logger.memory.find(tensor, returned=True)
    if value is None and any(tensor is held for held in call.environment.tensors):
        value = logger.captured(tensor)  # which no op has read
        logger.memory.put(tensor, value, None, False)
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
        if not isinstance(at, int) or not is_plain(tensor):
            what = f"reads a tensor of shape {list(tensor.shape)} in a way that cannot be followed"
            raise Unsupported(what, mend="make it an attribute")
        if tensor._backward_hooks:
            raise Unsupported("reads a tensor with hooks on its gradient")
        found.append(at)
    return tuple(found)
