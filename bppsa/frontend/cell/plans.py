"""Which cell runs fused, and how: the plan of each cell and set of shapes, made once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from bppsa.codegen.lowering.lower import IN_KERNELS
from bppsa.common.chain import Recurrence
from bppsa.decisions import warn_once
from bppsa.errors import InputError, InputIndexError, InputValueError, Reason, Unsupported, first_line
from bppsa.frontend.cell.again import CellReading, reading_of
from bppsa.frontend.cell.beside import Chosen, perhaps_by_rows, with_rows_last
from bppsa.frontend.cell.checks import CellFunction, check_carry, name_of, step
from bppsa.frontend.cell.fused_cell import CellPlan
from bppsa.frontend.cell.recorded import recorded
from bppsa.frontend.cell.second import Second, swapped
from bppsa.frontend.ordinary import mixed, unusual_moment
from bppsa.frontend.plan_cache import PlanCache, place
from bppsa.frontend.planning.sweeps import compile_recurrence
from bppsa.fxpasses.cell.heads import split_by_heads
from bppsa.fxpasses.cell.recurrence import Splitter
from bppsa.fxpasses.cell.rewrites.each_step import CANNOT, TRIED_STEPS
from bppsa.fxpasses.cell.survey import told
from bppsa.fxpasses.environment import going_on
from bppsa.fxpasses.environment.known import containers, known_environment
from bppsa.fxpasses.environment.libraries import owner
from bppsa.fxpasses.environment.state import put_back
from bppsa.fxpasses.environment.walk import Environment
from bppsa.fxpasses.lines import place_of
from bppsa.fxpasses.recording.capture import Recording
from bppsa.fxpasses.recording.recorder import DRAW_OUTSIDE
from bppsa.fxpasses.recording.uniform import fill_uniform
from bppsa.fxpasses.recording.unread import erase_unread
from bppsa.fxpasses.spelling.whole import growth_of
from bppsa.plan.choose import multiply_inline
from bppsa.sparsity.rules.matrix_ops import LinAlgError

WHOLE = (torch.bool, torch.int64, torch.int32)  # dtypes whose numbers a sweep holds as reals
MOST = 256  # plans, of cells
DRAW_BEFORE = (
    "draw them for all steps before and give them in xs (a class is the argmax of logits plus Gumbel noise); or write "
    "the loop in Python and bppsa.compile it, which takes dropout"
)
KEEPS = Reason(
    "keeps a tensor in an attribute, a list or a dict", mend="carry it, or return it as y and keep it after the scan"
)
ASKS_INFERENCE = {"is_inference", "is_inference_mode_enabled"}
OF_INFERENCE = Reason("asks for inference mode, in which no cell is read", mend="decide outside of the cell")
TWINS = Reason("reads two leaf tensors of one memory, which have gradients of their own", mend="read one")
GOES_ON = Reason("reads an iterator, which goes on from step to step", mend="give what it yields in xs")
DRAWS = Reason("draws from a random generator, which goes on from step to step", mend=DRAW_BEFORE)
# What a mistake of ours in a pass would raise, once the cell itself has run.
FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

_plans: PlanCache[CellPlan | Reason] = PlanCache(MOST)


def find(
    cell: CellFunction,
    carry: Sequence[Tensor],
    carry_spec: Any,
    xs: Sequence[Tensor],
    x_spec: Any,
    second: Second = (),
    otherwise: frozenset[int] = frozenset(),
) -> tuple[CellPlan, Environment, CellReading] | Reason:
    """The plan of the cell for tensors like these, made once, and what it was made of. carry: with rows in front, also
    where the cell has them second. otherwise: numbers of truth values that it reads which are not as usual."""
    reason = unusual(carry, xs)
    if reason is not None:
        return reason
    environment = known_environment(cell, given=(*containers(carry_spec), *containers(x_spec)))
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in carry), tuple((leaf.shape[1:], leaf.dtype) for leaf in xs)
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (*carry, *xs, *environment.tensors))
    asks = not gradients and any(leaf.requires_grad for leaf in carry)  # a cell may ask for it
    inference = torch.is_inference_mode_enabled()
    if inference and not ASKS_INFERENCE.isdisjoint(environment.lookups.names):
        return OF_INFERENCE
    modes = asks, gradients, torch.is_grad_enabled(), inference, torch.get_default_dtype()
    made = []

    def read() -> CellPlan | Reason:
        made.append(environment)
        return make(cell, carry, carry_spec, xs, x_spec, second, environment, gradients, otherwise)

    key = environment.key, carry_spec, x_spec, shapes, second, otherwise, *modes
    plan = _plans.find(key, read, environment.opaque)
    reading = reading_of(cell, environment, bool(made))
    if isinstance(plan, Reason):
        return plan
    return (
        mixed((*carry, *xs, *plan.captured(environment))) or without_kernel(plan, xs[0]) or (plan, environment, reading)
    )


def without_kernel(plan: CellPlan, x: Tensor) -> Reason | None:
    """Why the device of x has no kernel for the plan."""
    return plan.without_gpu if x.device.type == "cuda" else None


def unusual(carry: Sequence[Tensor], xs: Sequence[Tensor]) -> Reason | None:
    """Why a call is left to PyTorch whatever the cell."""
    held = {str(leaf.dtype) for leaf in carry}
    dtypes = {leaf.dtype.to_real() for leaf in carry if leaf.dtype not in WHOLE}
    if reason := unusual_moment():
        return reason
    device = xs[0].device.type
    if device not in ("cpu", "cuda"):
        return Reason(f"a device that has no kernels: {device}", mend="on a CPU or a GPU with CUDA it runs fused")
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        mend = "use one of float32 and float64 throughout" if dtypes else "carry real numbers beside it"
        return Reason(f"a carry of {', '.join(sorted(held))}", mend=mend)
    if torch.is_autocast_enabled(device):
        return Reason("autocast decides dtypes op by op")
    if any(leaf.dim() == 0 for leaf in carry):
        return Reason("a carry without a batch dimension", mend="use carry [B, ...] and xs [T, B, ...] or [T]")
    rows = {*(leaf.shape[0] for leaf in carry), *(leaf.shape[1] for leaf in xs if leaf.dim() > 1)}
    if len(rows) != 1 or rows == {0}:
        return Reason(f"batch sizes {sorted(rows)}", mend="give the carry and xs one batch size of at least 1")
    return None


def make(
    cell: CellFunction,
    carry: Sequence[Tensor],
    carry_spec: Any,
    xs: Sequence[Tensor],
    x_spec: Any,
    second: Second,
    environment: Environment,
    gradients: bool,
    otherwise: frozenset[int],
) -> CellPlan | Reason:
    """Makes the plan of a cell, or says why it has none. gradients: whether some are wanted of a call like this one."""
    y_spec: Any = None

    def flat_cell(carry_leaves: Sequence[Tensor], x_leaves: Sequence[Tensor]) -> tuple[list[Tensor], list[Any]]:
        nonlocal y_spec
        given = swapped(carry_leaves, second)
        x = pytree.tree_unflatten(list(x_leaves), x_spec)
        nexts, y = step(cell, pytree.tree_unflatten(given, carry_spec), x)
        next_leaves = check_carry(given, carry_spec, nexts)
        y_leaves, y_spec = pytree.tree_flatten(y)
        return swapped(next_leaves, second), y_leaves

    if going_on.iterators(environment.opaque):
        return GOES_ON
    if has_twins(environment.tensors):
        return TWINS
    drawn = going_on.generators(environment.opaque)
    try:
        recording, recorder = recorded(flat_cell, ([*carry], [leaf[0] for leaf in xs]), gradients, otherwise)
    except Unsupported as unsupported:
        reason = unsupported.reason
        if reason.mend == DRAW_OUTSIDE:
            reason = replace(reason, mend=DRAW_BEFORE)
        return reason if reason.path else replace(reason, path=place_of(unsupported))
    except (InputError, InputValueError, InputIndexError) as error:  # which the loop raises too, if it is the cell's
        cause = error.__cause__ or error
        return Reason(f"it does not run on stand-ins: {first_line(cause)}", path=place_of(cause))
    finally:
        kept, has_drawn = put_back(environment.trail, owner(cell)), going_on.put_back(drawn)
    if kept or has_drawn:
        return KEEPS if kept else DRAWS
    read_by_python = [node for node, _ in recorder.truths]
    recording = replace(recording, result=(recording.result[0], [*recording.result[1], *read_by_python]))
    fill_uniform(recording.graph, recording.arguments[0].meta["val"].shape[0])
    erase_unread(recording)
    try:
        plan = plan_or_reasons(recording, len(carry), len(xs), environment.tensors, y_spec)
    except FAULTS as error:  # the loop gives the numbers, and the fault is told aloud
        what = f"bppsa fails to plan it: {type(error).__name__}: {first_line(error)}"
        warn_once(f"bppsa.scan runs {name_of(cell)} op by op: {what}; please report this")
        return Reason(what, mend="please report this")
    return plan if isinstance(plan, Reason) else replace(plan, truths=tuple(recorder.truths.values()))


def has_twins(tensors: Sequence[Tensor]) -> bool:
    """Whether two leaves are one memory: each has its own gradient, and a recording cannot tell them apart."""
    leaves = [tensor for tensor in tensors if tensor.requires_grad and tensor.is_leaf]
    places = {(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) for tensor in leaves if tensor.numel()}
    return len(places) < sum(tensor.numel() > 0 for tensor in leaves)


def plan_or_reasons(
    recording: Recording, carries: int, xs: int, tensors: Sequence[Tensor], y_spec: Any
) -> CellPlan | Reason:
    """The plan of a recorded cell, or all that stands in the way of one. tensors: those that the cell closes over."""

    def planned(chosen: Chosen) -> CellPlan:
        own = with_rows_last(recording, chosen)
        dims = [chosen.dim(tensor) for tensor, _ in own.captured]
        places = tuple(place(tensor, tensors, "cell") for tensor, _ in own.captured)
        return plan_of(own, carries, xs, places, y_spec, tuple(dim for dim in dims if dim is not None))

    try:
        return planned(Chosen())
    except Unsupported as unsupported:
        reason = unsupported.reason
    for chosen in perhaps_by_rows(tensors, recording.arguments[0].meta["val"].shape[0]):
        try:  # with a row of them for each of the batch: where all ops agree that is what is meant
            return planned(chosen)
        except Unsupported:
            continue
    return told(reason, recording, carries, xs, IN_KERNELS)


def plan_of(
    recording: Recording,
    carries: int,
    xs: int,
    places: tuple[int | Tensor, ...],
    y_spec: Any,
    beside: tuple[int, ...] = (),
) -> CellPlan:
    """The plan of a cell recorded as (carry leaves, x leaves, ...) -> (next carry leaves, y leaves). beside: of the
    last tensors that it closed over, those with a row for each of the batch, in which dimension: they are given like x,
    for all steps."""
    nexts, ys = recording.result
    if beside:
        split_at = len(recording.captured) - len(beside)
        nodes = [node for _, node in recording.captured[split_at:]]
        arguments = (*recording.arguments[: carries + xs], *nodes, *recording.arguments[carries + xs :])
        recording = replace(recording, arguments=arguments, captured=recording.captured[:split_at])
        xs += len(beside)
    if not all(isinstance(y, fx.Node) for y in ys):
        raise Unsupported("an output that is not a tensor")
    values = [node.meta["val"] for node in recording.arguments[:carries]]
    dtype = next((value.dtype.to_real() for value in values if value.dtype not in WHOLE), None)
    if dtype is None:
        raise Unsupported("a carry without real numbers")
    recurrence = split_by_heads(Splitter(replace(recording, result=(nexts, ys)), carries, xs, IN_KERNELS))
    check_dtypes(recurrence, dtype)
    rows = recording.arguments[0].meta["val"].shape[0]
    compile_recurrence(recurrence, dtype, multiply_inline(rows, "cpu"))  # raises where it cannot be fused
    hoisted, tail = (None if g is None else run_anywhere(g) for g in (recurrence.hoisted, recurrence.tail))
    for part in filter(None, (hoisted, tail)):
        try_out(part)
    y_shapes = tuple(y.meta["val"].shape for y in ys)
    carry_shapes, dtypes = tuple(value.shape for value in values), tuple(value.dtype for value in values)
    growth = growth_of(recurrence)
    return CellPlan(recurrence, dtype, hoisted, tail, places, y_spec, y_shapes, carry_shapes, dtypes, growth, beside)


def check_dtypes(recurrence: Recurrence, dtype: torch.dtype) -> None:
    """A sweep computes in one dtype; whole numbers and truth values are numbers of it there."""
    for node in recurrence.body.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.dtype not in (dtype, *WHOLE):
            op = str(node.target) if node.op == "call_function" else ""
            raise Unsupported(f"{value.dtype} in a cell of {dtype}", op=op, mend="use one dtype and bool")


def run_anywhere(graph: fx.Graph) -> fx.GraphModule:
    """What the graph computes, of tensors that may lie in memory in another way than the stand-ins that it is from."""
    for target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
        for node in graph.find_nodes(op="call_function", target=target):
            node.target = torch.ops.aten.reshape.default
    return fx.GraphModule({}, graph)


def try_out(part: fx.GraphModule) -> None:
    """Run what is done for all steps at once on numbers of two steps: a mistake of ours shows here, before a call
    depends on it."""
    try:
        run_on(part, 0)
    except CANNOT:  # a whole number was divided by zero, perhaps
        run_on(part, 1)


def run_on(part: fx.GraphModule, number: int) -> None:
    """Run it on tensors of two steps that are this number all over; their matrices may be singular."""
    given = []
    for node in part.graph.find_nodes(op="placeholder"):
        like = node.meta["val"]
        sizes = (TRIED_STEPS * like.shape[0], *like.shape[1:]) if like.dim() else (TRIED_STEPS,)
        given.append(like.new_full(like.shape if node.meta["role"].kind == "param" else sizes, number))
    singular = suppress(LinAlgError, ArithmeticError)
    with _disable_current_modes(), torch.no_grad(), singular:
        part(*given)
