"""A plan for calls like one that was logged: its loops found, fused, and believed after a run beside PyTorch's."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from bppsa.decisions import Decision
from bppsa.errors import BuildError, GradientError, Reason, Unsupported, first_line
from bppsa.frontend.call_log import note, unnoted
from bppsa.frontend.loops.changing import settled
from bppsa.frontend.loops.key import LoopCall, attributes
from bppsa.frontend.loops.shared import SharedSteps, are_of, shape_of
from bppsa.frontend.loops.state import LeftCall
from bppsa.frontend.loops.trust import Witness, believe, is_trusted_in_double
from bppsa.frontend.loops.verify import Differs, OtherNumbers
from bppsa.frontend.ordinary import is_plain
from bppsa.frontend.plan_cache import place
from bppsa.frontend.planning.predict import ms_of_ops
from bppsa.frontend.trials import trial
from bppsa.fxpasses.environment.libraries import owner
from bppsa.fxpasses.environment.walk import SIMPLE
from bppsa.fxpasses.recording.capture import check_gradients
from bppsa.fxpasses.reroll.find import Repetition, is_repeated, reroll, short_loop
from bppsa.fxpasses.reroll.log.numbers import Arithmetic
from bppsa.fxpasses.reroll.log.ops import LoggedValue, draws
from bppsa.fxpasses.reroll.log.record import Logger
from bppsa.fxpasses.reroll.log.replay import Replay
from bppsa.fxpasses.reroll.log.unseen import watched
from bppsa.fxpasses.reroll.program import LoopProgram, program_of
from bppsa.runtime.recurrent.check import asked
from bppsa.sparsity.rules.matrix_ops import LinAlgError


@dataclass(frozen=True)
class LoopPlan:
    """run: the program, of the tensors among the arguments and of those in the environment at `places`, literals and
    numbers: terms of the arithmetic, and their dtypes.
    result: what the call returned, numbers in the place of its tensors; others: leaves that are none."""

    run: fx.GraphModule
    arguments: tuple[int, ...]
    places: tuple[int, ...]
    literals: tuple[Tensor, ...]
    numbers: tuple[tuple[int, torch.dtype], ...]
    arithmetic: Arithmetic
    values: tuple[float, ...]  # of followed numbers, in the call that it was made of
    spec: Any
    others: tuple[Any, ...]  # by leaf; `TENSOR` where one is
    scans: tuple[Decision, ...]
    left: tuple[Decision, ...]  # of repetitions that are no scans
    doubted: bool  # whether its numbers are not PyTorch's in float32, and are in float64
    picks: bool  # whether it may refuse the numbers it is given: whole ones too large, matrices that are singular
    is_shared: bool = False  # whether its cells are those of other lengths

    def tensors(self, call: LoopCall, numbers: Sequence[float]) -> list[Tensor]:
        given, held = call.tensors, call.environment.tensors
        tensors = [*(given[i] for i in self.arguments), *(held[i] for i in self.places), *self.literals]
        if self.numbers:
            values = self.arithmetic.values(numbers or self.values)
            tensors += [torch.tensor(values[term], dtype=dtype) for term, dtype in self.numbers]
        return tensors

    @property
    def is_for_any_numbers(self) -> bool:
        """Whether what it is given in the place of followed numbers may be others."""
        return self.arithmetic.is_all and not self.literals

    def result(self, call: LoopCall, numbers: Sequence[float] = ()) -> Any:
        """Raises `Unsupported`, and has drawn no random number, where it refuses the numbers it is given."""
        state = torch.get_rng_state() if self.picks else None
        try:
            with errors_refused():
                made = iter(self.run(*self.tensors(call, numbers)))
        except Unsupported:
            if state is not None:
                torch.set_rng_state(state)
            raise
        return pytree.tree_unflatten([next(made) if o is TENSOR else o for o in self.others], self.spec)


@contextmanager
def errors_refused() -> Iterator[None]:
    """Errors of numbers, as of the root of a negative one or of a singular matrix, are PyTorch's to raise."""
    try:
        yield
    except (LinAlgError, ArithmeticError) as error:
        raise Unsupported(Reason(first_line(error))) from error


TENSOR = object()
GROWN = "rounding grows over its steps: its numbers are not PyTorch's in float32, and are in float64"
MEND = "report it with what was called; meanwhile compile with loops=False"


def first_call(
    root: Any,
    plain: Callable[..., Any],
    args: Any,
    kwargs: Any,
    call: LoopCall,
    path: str,
    shared: SharedSteps,
    follow: Callable[[Arithmetic], Any] | None = None,
    numbers: Sequence[float] = (),
) -> tuple[Any, LoopPlan | LeftCall]:
    """What the call returns, as PyTorch runs it, and the plan for others like it. follow: gives the arguments with
    numbers that are followed; a plan that is for any of these has `arithmetic`."""
    arithmetic = Arithmetic()
    given = (args, kwargs) if follow is None else follow(arithmetic)
    logger = Logger(call.tensors, arithmetic)
    before = torch.get_rng_state()
    with (
        unnoted() as within,
        trial() as tried,
        watched(root, logger.refuse, [refer() for refer in call.environment.opaque], arithmetic),
        logger,
    ):
        result = plain(*given[0], **given[1])
    result = settled(result, arithmetic)
    leaves, spec = pytree.tree_flatten(result)
    check_unchanged(logger, root, args, kwargs, call)
    if not (logger.log.branches or is_repeated(logger.log)):
        note(*within)
        short = short_loop(logger.log)
        return result, LeftCall((refused(short, path),), is_short=True) if short is not None else LeftCall()
    found: list[Repetition] = []
    try:
        plan = planned(logger, leaves, spec, call, path, found, before, (arithmetic, numbers), shared)
    except Unsupported as unsupported:
        raise_if_asked(unsupported)
        note(*within)
        return result, left(path, found, unsupported.reason, tried.has_inner and logger.log.refusal is not None)
    except BuildError as error:
        note(*within)
        return result, left(path, found, Reason(first_line(error)))
    return result, plan


def raise_if_asked(unsupported: Unsupported) -> None:
    """With BPPSA_CHECK=1, for a plan that was made and computes something else: that is a bug of ours."""
    if isinstance(unsupported, Differs) and asked():
        raise GradientError(f"a loop that runs as a scan: {unsupported}; {MEND}") from unsupported


def checked(
    plan: LoopPlan, plain: Callable[..., Any], args: Any, kwargs: Any, call: LoopCall, numbers: Sequence[float] = ()
) -> Any:
    """What PyTorch gives, after a run of the plan beside it. Raises GradientError where they differ."""
    before = torch.get_rng_state()
    result = plain(*args, **kwargs)
    try:
        with errors_refused():
            given = plan.tensors(call, numbers)
    except Unsupported:
        return result
    try:
        believe(plan.run, tensors_in(pytree.tree_leaves(result)), given, before)
    except Unsupported as unsupported:
        if plan.doubted and isinstance(unsupported, OtherNumbers):
            return result
        raise_if_asked(unsupported)
        if not plan.picks:
            raise
    return result


def left(path: str, found: Sequence[Repetition], reason: Reason, around_others: bool = False) -> LeftCall:
    told = refusals(found, path)
    place = named(path, found[0]) if found else path
    return LeftCall(told or (Decision(place, "loop", "pytorch", str(reason)),), around_others)


def check_unchanged(logger: Logger, root: Any, args: Any, kwargs: Any, call: LoopCall) -> None:
    if not call.environment.trail.holds(owner(root)):
        logger.refuse(Reason("changes an attribute, a global name or what they hold", mend="keep state in the carry"))
    if any(hasattr(type(refer()), "__next__") for refer in call.environment.opaque):
        logger.refuse(Reason("reads an iterator, which goes on from call to call", mend="hold a list"))
    now, spec = pytree.tree_flatten((args, kwargs))
    if spec != call.spec or any(one is not other for one, other in zip(now, call.leaves, strict=True)):
        logger.refuse(Reason("changes a container that it was given"))
    if any(map(attributes, call.tensors)):
        logger.refuse(Reason("gives attributes to a tensor that it was given"))


def planned(
    logger: Logger,
    leaves: Sequence[Any],
    spec: Any,
    call: LoopCall,
    path: str,
    found: list[Repetition],
    before: Tensor,
    followed: tuple[Arithmetic, Sequence[float]],
    shared: SharedSteps,
) -> LoopPlan:
    """found: what repeats itself goes there. before: the state of the random numbers before the call."""
    log, (arithmetic, numbers) = logger.log, followed
    with logger.refusing():
        logger.end_functions()
    if log.refusal is not None:
        raise Unsupported(log.refusal)
    others = tuple(TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    for leaf in others:
        if leaf is not TENSOR and not isinstance(leaf, SIMPLE):
            raise Unsupported(Reason(f"returns a {type(leaf).__name__}", mend="return tensors, numbers, containers"))
    tensors = tensors_in(leaves)
    captured = [value.given.captured for value in log.captured if value.given and value.given.captured is not None]
    check_gradients(tensors, [*captured, *call.tensors], logger.own.nodes)
    result = [returned(logger, tensor) for tensor in tensors]  # which may write ops down yet
    replay, random = Replay(log), before if any(map(draws, log.ops)) else None
    cells = list(shared.cells.values())
    rerolled = reroll(log, result, shared.fuse, shared.numbers)
    found += rerolled.found
    if all(one.scan is None for one in found):
        raise Unsupported(found[0].reason if found and found[0].reason else Reason("its steps are not alike"))
    bases = {value for value, tensor in zip(rerolled.result, tensors, strict=True) if not tensor._is_view()}
    program = program_of(log, rerolled.ops, rerolled.result, torch.is_grad_enabled(), bases)
    fused = [one for one in found if one.scan is not None]
    scans: list[Any] = [one.scan.target for one in fused if one.scan is not None]
    picks = log.raises or any(scan.plan.refuses for scan in scans)
    told = refusals(found, path)
    plan = LoopPlan(
        program.run,
        program.arguments,
        places(program, call),
        program.literals,
        program.numbers,
        arithmetic,
        tuple(numbers),
        spec,
        others,
        (),
        told,
        False,
        picks,
        are_of(scans, cells),
    )
    values = arithmetic.values(numbers) if arithmetic.terms else []
    witness = Witness(program, replay, result, {value: tensor_of(value, call, values) for value in replay.given})
    shape, within = shape_of(program.run, (plan.arguments, plan.places, plan.numbers, len(plan.literals), spec))
    known = shared.knows(shape, within)
    doubted = is_trusted_in_double(witness, plan.run, tensors, plan.tensors(call, numbers), random, known)
    if not doubted:
        shared.trust(shape, within)
    beside = ops_beside(program.run, scans) // len(scans)
    decided = by_loop(
        fused,
        [
            told_of(one, scan.decision, named(path, one), beside, doubted)
            for one, scan in zip(fused, scans, strict=True)
        ],
    )
    for scan, decision in zip(scans, decided, strict=True):
        scan.decision = decision
    return replace(plan, scans=tuple(filter(None, decided)), doubted=doubted)


def by_loop(found: Sequence[Repetition], told: Sequence[Decision]) -> list[Decision | None]:
    """One decision a loop, with its first scan: what it does besides, as a loss that is summed, may be scans too."""
    members: dict[str, list[Decision]] = {}
    for i, (one, decision) in enumerate(zip(found, told, strict=True)):
        members.setdefault(one.line or str(i), []).append(decision)
    whole = {id(own[0]): together(own) for own in members.values()}
    return [whole.get(id(decision)) for decision in told]


def together(scans: Sequence[Decision]) -> Decision:
    first, *others = scans
    sizes = [", ".join(f"{name}={scan.numbers[name]}" for name in ("T", "B", "H")) for scan in others]
    also = (f"also run as scans: {'; '.join(sizes)}",) if sizes else ()
    return replace(first, details=(*first.details, *also))


def told_of(one: Repetition, decision: Decision, path: str, beside: int, doubted: bool) -> Decision:
    """beside: how many ops PyTorch runs beside this scan, such as draws of each step."""
    reasons, gain = [decision.reason], None
    ours, theirs = (decision.numbers.get(name) for name in ("predicted ms", "PyTorch's"))
    if beside >= int(decision.numbers["T"]) and isinstance(ours, float) and isinstance(theirs, float):
        ms = ms_of_ops(beside, torch.is_grad_enabled())
        gain = (theirs + ms) / (ours + ms)
        reasons.append(f"{gain:.1f} times with the {beside} ops beside it, which PyTorch runs")
    reasons += [GROWN] * doubted
    numbers = {**decision.numbers, "T": one.steps}
    return replace(decision, path=path, reason="; ".join(reasons), numbers=numbers, speedup=gain)


def ops_beside(run: fx.GraphModule, scans: Sequence[Any]) -> int:
    calls = run.graph.find_nodes(op="call_function", target=operator.getitem)
    return sum(node.op == "call_function" for node in run.graph.nodes) - len(calls) - len(scans)


def tensors_in(leaves: Sequence[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def tensor_of(value: LoggedValue, call: LoopCall, numbers: Sequence[float]) -> Tensor:
    given = value.given
    assert given is not None
    if given.number >= 0:
        return torch.tensor(numbers[given.number], dtype=value.dtype)
    found = given.captured if given.captured is not None else given.literal
    return call.tensors[given.argument] if found is None else found


def returned(logger: Logger, tensor: Tensor) -> LoggedValue:
    value = logger.memory.find(tensor)
    if value is None:
        raise Unsupported(Reason("returns a tensor that none of its ops has made"))
    if value.op is not None and attributes(tensor):
        what = f"returns a tensor with attributes of its own ({', '.join(attributes(tensor))})"
        raise Unsupported(Reason(what, mend="return them beside it"))
    return value


def places(program: LoopProgram, call: LoopCall) -> tuple[int, ...]:
    found = []
    for tensor in program.captured:
        at = place(tensor, call.environment.tensors, "module")
        if not isinstance(at, int) or not (is_plain(tensor) and tensor.is_cpu):
            what = f"reads a tensor of shape {list(tensor.shape)} in a way that cannot be followed"
            raise Unsupported(Reason(what, mend="make it an attribute"))
        if tensor._backward_hooks:
            raise Unsupported(Reason("reads a tensor with hooks on its gradient"))
        found.append(at)
    return tuple(found)


def refusals(found: Sequence[Repetition], path: str) -> tuple[Decision, ...]:
    """One a loop: what repeats in it in another way, and is left too, is no other loop."""
    first: dict[str, Repetition] = {}
    for i, one in enumerate(found):
        if one.reason is not None:
            first.setdefault(one.line or str(i), one)
    return tuple(refused(one, path) for one in first.values())


def refused(one: Repetition, path: str) -> Decision:
    return Decision(named(path, one), "loop", "pytorch", str(one.reason), {"T": one.steps, "ops": one.period})


def named(path: str, one: Repetition) -> str:
    file, _, line = one.line.rpartition(":")
    if not line:
        return path or "a loop"
    where = f"{file.rpartition('/')[2]}:{line}"
    return f"{path}:{where}" if path else where
