"""Which cell runs fused, and how: the plan of each cell and set of shapes, made once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from bppsa._modules.calls import is_ordinary_moment, mixed
from bppsa._remembered import Remembered, place
from bppsa._scan_call import Plan
from bppsa._scan_checks import Cell, check_carry, step
from bppsa._sweeps import compile_recurrence
from bppsa.chain import Recurrence
from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.capture import Recording, record
from bppsa.fxpasses.environment import Environment, known_environment
from bppsa.fxpasses.recurrence import split
from bppsa.plan.choose import multiply_inline

REMEMBERED = 256  # cells

_plans: Remembered[Plan | Reason] = Remembered(REMEMBERED)


def find(
    cell: Cell, carry: Sequence[Tensor], carry_spec: Any, xs: Sequence[Tensor], x_spec: Any
) -> tuple[Plan, Environment] | Reason:
    """The plan of the cell for tensors like these, made once."""
    reason = unusual(carry, xs)
    if reason is not None:
        return reason
    environment = known_environment(cell)
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in carry), tuple((leaf.shape[1:], leaf.dtype) for leaf in xs)
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (*carry, *xs, *environment.tensors))
    key = (environment.key, carry_spec, x_spec, shapes, gradients, torch.is_grad_enabled(), torch.get_default_dtype())
    plan = _plans.find(
        key, lambda: make(cell, carry, carry_spec, xs, x_spec, environment, gradients), environment.opaque
    )
    if isinstance(plan, Reason):
        return plan
    return mixed((*carry, *xs, *plan.captured(environment))) or (plan, environment)


def unusual(carry: Sequence[Tensor], xs: Sequence[Tensor]) -> Reason | None:
    """Why a call is left to PyTorch whatever the cell."""
    dtypes = {leaf.dtype for leaf in carry}
    if not is_ordinary_moment():
        return Reason("a functorch transform, forward-mode AD, a tracer or a mode is active")
    device = xs[0].device.type
    if device not in ("cpu", "cuda"):
        return Reason(f"a device that has no kernels: {device}", mend="on a CPU or a GPU with CUDA it runs fused")
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        return Reason(f"a carry of {', '.join(sorted(map(str, dtypes)))}", mend="use float32 or float64 throughout")
    if torch.is_autocast_enabled(device):
        return Reason("autocast decides dtypes op by op")
    if any(leaf.dim() == 0 for leaf in carry) or any(leaf.dim() < 2 for leaf in xs):
        return Reason("a value without a batch dimension", mend="use carry [B, ...] and xs [T, B, ...]")
    rows = {*(leaf.shape[0] for leaf in carry), *(leaf.shape[1] for leaf in xs)}
    if len(rows) != 1 or rows == {0}:
        return Reason(f"batch sizes {sorted(rows)}", mend="give the carry and xs one batch size of at least 1")
    return None


def make(
    cell: Cell,
    carry: Sequence[Tensor],
    carry_spec: Any,
    xs: Sequence[Tensor],
    x_spec: Any,
    environment: Environment,
    gradients: bool,
) -> Plan | Reason:
    y_spec: Any = None

    def flat_cell(carry_leaves: Sequence[Tensor], x_leaves: Sequence[Tensor]) -> tuple[list[Tensor], list[Any]]:
        nonlocal y_spec
        given = pytree.tree_unflatten(list(carry_leaves), carry_spec)
        nexts, y = step(cell, given, pytree.tree_unflatten(list(x_leaves), x_spec))
        next_leaves = check_carry(carry_leaves, carry_spec, nexts)
        y_leaves, y_spec = pytree.tree_flatten(y)
        return next_leaves, y_leaves

    try:
        recording = record(flat_cell, ([*carry], [leaf[0] for leaf in xs]), gradients=gradients)
        places = tuple(place(tensor, environment.tensors, "cell") for tensor, _ in recording.captured)
        return plan_of(recording, len(carry), len(xs), places, y_spec)
    except Unsupported as unsupported:
        return unsupported.reason


def plan_of(recording: Recording, carries: int, xs: int, places: tuple[int | Tensor, ...], y_spec: Any) -> Plan:
    """The plan of a cell recorded as (carry leaves, x leaves, ...) -> (next carry leaves, y leaves)."""
    nexts, ys = recording.result
    if not all(isinstance(y, fx.Node) for y in ys):
        raise Unsupported(Reason("an output that is not a tensor"))
    recurrence, dtype = split(recording, carries, xs, ys, nexts), recording.arguments[0].meta["val"].dtype
    check_dtypes(recurrence, dtype)
    rows = recording.arguments[0].meta["val"].shape[0]
    compile_recurrence(recurrence, dtype, multiply_inline(rows, "cpu"))  # raises where it cannot be fused
    hoisted, tail = (None if g is None else fx.GraphModule({}, g) for g in (recurrence.hoisted, recurrence.tail))
    y_shapes = tuple(y.meta["val"].shape for y in ys)
    carry_shapes = tuple(node.meta["val"].shape for node in recording.arguments[:carries])
    return Plan(recurrence, dtype, hoisted, tail, places, y_spec, y_shapes, carry_shapes)


def check_dtypes(recurrence: Recurrence, dtype: torch.dtype) -> None:
    """A sweep computes in one dtype; truth values are numbers there."""
    for node in recurrence.body.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.dtype not in (dtype, torch.bool):
            op = str(node.target) if node.op == "call_function" else ""
            raise Unsupported(Reason(f"{value.dtype} in a cell of {dtype}", op=op, mend="use one dtype and bool"))
    if any(node.meta["val"].dtype is torch.bool for node in recurrence.output_nodes):
        raise Unsupported(Reason("an output of truth values", mend="make it a number: y.to(x.dtype)"))
