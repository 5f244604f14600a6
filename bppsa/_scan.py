"""bppsa.scan: a recurrence over a cell the user wrote, fused where the cell allows it."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from bppsa._calls import note, strategy_of_model
from bppsa._modules.calls import is_ordinary_moment, is_plain
from bppsa._scan_checks import Cell, check_carry, check_inputs, checked, name_of, step
from bppsa._sweeps import compile_recurrence, with_structure
from bppsa.chain import Recurrence
from bppsa.errors import BuildError, Reason, Unsupported
from bppsa.fxpasses.capture import Recording, record
from bppsa.fxpasses.environment import Environment, known_environment
from bppsa.fxpasses.models import recording_model
from bppsa.fxpasses.recurrence import split
from bppsa.plan.choose import choose_scan, multiply_inline
from bppsa.plan.strategy import AUTO, Strategy, strategy_of
from bppsa.report import Decision, warn_once
from bppsa.runtime import autograd, reference
from bppsa.runtime.autograd import Result
from bppsa.runtime.backward import Asked, backward, prepare
from bppsa.runtime.extent import Extent, Given, Shape
from bppsa.runtime.sweep import Needs, Sweep

REMEMBERED = 256  # cells


def scan(
    cell: Cell, carry: Any, xs: Any, *, reverse: bool = False, strategy: str | Strategy | None = None
) -> tuple[Any, Any]:
    """Run `carry, y_t = cell(carry, x_t)` over the steps of `xs` and return the last carry and all ys.

    cell: a function or a Module; parameters and tensors it closes over get gradients. carry: a pytree of [B, ...]; the
    cell must return one of the same structure, shapes and dtypes. xs: a pytree of [T, B, ...], T >= 1; ys: a pytree of
    [T, ...], in the order of xs also when `reverse` runs the steps from the last to the first. strategy: of the
    backward, a name or one of `bppsa.strategies`; None is that of the compiled model this is called in, or "auto".

    A cell of pointwise ops, products with parameters, slices and concatenations of features and row sums (layer norm)
    on [B, n] values runs as one generated kernel each way; any other runs op by op, and `bppsa.explain` says why.

    Raises CarryError (a TypeError) where the carry changes, a leaf is no tensor or the cell does not return a pair,
    InputError (a RuntimeError) where xs do not agree in T. What PyTorch's ops raise within the cell keeps its type, and
    says what the cell was given.
    """
    if recording_model():
        raise Unsupported(Reason("a bppsa.scan is a chain of its own", mend="it follows the strategy by itself"))
    carry_leaves, carry_spec = pytree.tree_flatten(carry)
    x_leaves, x_spec = pytree.tree_flatten(xs)
    check_inputs(carry_leaves, x_leaves)
    found = find(cell, carry_leaves, carry_spec, x_leaves, x_spec)
    steps, rows = x_leaves[0].shape[0], carry_leaves[0].shape[0] if carry_leaves and carry_leaves[0].dim() else 0
    numbers = {"T": steps, "B": rows, "H": sum(leaf.shape[-1] for leaf in carry_leaves if leaf.dim() > 1)}
    asked = strategy_of((strategy_of_model() or AUTO) if strategy is None else strategy)
    if isinstance(found, Reason):
        if asked.name != "auto":
            warn_once(f"bppsa.scan runs {name_of(cell)} op by op, without the strategy {asked}: {found}")
        note(Decision(name_of(cell), "scan", "pytorch", str(found), numbers))
        return reference.loop(checked(cell, carry_leaves, carry_spec), carry, xs, reverse=reverse)
    plan, environment = found
    choice = choose_scan(asked, steps, torch.is_grad_enabled(), numbers)
    try:
        nexts, ys = plan.run(carry_leaves, x_leaves, plan.captured(environment), reverse, strategy_of(choice.strategy))
    except BuildError as error:
        warn_once(f"bppsa.scan runs cells op by op: {error}")
        note(Decision(name_of(cell), "scan", "pytorch", str(error).splitlines()[0], numbers))
        return reference.loop(checked(cell, carry_leaves, carry_spec), carry, xs, reverse=reverse)
    decision = Decision(name_of(cell), "scan", choice.strategy, choice.reason, choice.numbers)
    note(with_structure(decision, plan.recurrence))
    return pytree.tree_unflatten(nexts, carry_spec), pytree.tree_unflatten(ys, plan.y_spec)


@dataclass(frozen=True)
class Plan:
    """A cell that was fused, for one structure and one set of shapes (T aside)."""

    recurrence: Recurrence
    dtype: torch.dtype
    hoisted: fx.GraphModule | None
    tail: fx.GraphModule | None
    places: tuple[int | Tensor, ...]  # of each captured tensor in the environment, or a constant made by the cell
    y_spec: Any
    y_shapes: tuple[torch.Size, ...]  # of one step
    carry_shapes: tuple[torch.Size, ...]

    def captured(self, environment: Environment) -> list[Tensor]:
        return [environment.tensors[at] if isinstance(at, int) else at for at in self.places]

    def run(
        self,
        carry: Sequence[Tensor],
        xs: Sequence[Tensor],
        captured: Sequence[Tensor],
        reverse: bool,
        strategy: Strategy,
    ) -> tuple[list[Tensor], list[Tensor]]:
        steps, rows = xs[0].shape[0], carry[0].shape[0]
        sources, params = xs, captured
        stacked = [] if self.hoisted is self.tail is None else [x.reshape(steps * rows, *x.shape[2:]) for x in xs]
        if self.hoisted is not None:
            sources, params = self.hoisted(*stacked, *captured)
        rows_of = [self.rows(s, (steps, rows, -1)) if i in self.used else None for i, s in enumerate(sources)]
        extent = Extent(steps, rows, reverse, device=xs[0].device)
        inline = multiply_inline(rows, extent.device.type)
        call = ScanCall(self, extent, len(rows_of), len(carry), strategy, inline)
        masks = (p.to(self.dtype) if p.dtype is torch.bool else p for p in params)
        results = autograd.apply(call, [*rows_of, *(self.rows(c, (rows, -1)) for c in carry), *masks])
        outputs, finals = results[: len(results) - len(carry)], results[len(results) - len(carry) :]
        ys: Sequence[Tensor] = outputs
        if self.tail is not None:
            shapes = [node.meta["val"].shape[1:] for node in self.recurrence.output_nodes]
            flat = [o.reshape(steps * rows, *shape) for o, shape in zip(outputs, shapes, strict=True)]
            ys = self.tail(*flat, *stacked, *captured)
        ys = [
            y if y.shape[1:] == shape else y.reshape(steps, *shape) for y, shape in zip(ys, self.y_shapes, strict=True)
        ]
        shaped = zip(finals, self.carry_shapes, strict=True)
        return [f if f.shape == shape else f.reshape(shape) for f, shape in shaped], ys

    @cached_property
    def used(self) -> frozenset[int]:
        """The sources that the sweep reads."""
        return frozenset(stream.source for stream in self.recurrence.streams)

    def rows(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        """As a sweep takes it, without a call where it is so already."""
        tensor = tensor if tensor.dtype is self.dtype else tensor.to(self.dtype)
        return tensor if tensor.dim() == len(shape) else tensor.reshape(shape)


@dataclass(frozen=True)
class ScanCall:
    """One call of a fused cell. Tensors: sources [T, B, n], carries [B, n], parameters; outputs: ys, final carries."""

    plan: Plan
    extent: Extent
    sources: int
    carries: int
    strategy: Strategy  # of the backward
    inline: bool

    @cached_property
    def shown(self) -> frozenset[int]:
        """The carries whose states are outputs."""
        return frozenset(i for i in self.sweep.program.output_carry if i is not None)

    @property
    def exposed(self) -> int:
        return len(self.shown)

    @property
    def leading(self) -> tuple[int, int]:
        return self.sources, self.carries

    @cached_property
    def sweep(self) -> Sweep:
        return compile_recurrence(self.plan.recurrence, self.plan.dtype, self.inline, self.extent.device.type)

    def parts(self, tensors: Sequence) -> tuple[Sequence, Sequence, Sequence]:
        first, second = self.sources, self.sources + self.carries
        return tensors[:first], tensors[first:second], tensors[second:]

    def forward(self, tensors: Given, *, save: bool) -> Result:
        sources, carries, params = self.parts(tensors)
        if save:
            prepare(self.sweep, self.strategy, self.extent.steps)
        passed = self.sweep.forward(sources, carries, params, self.extent, save=save)
        seen: set[int] = set()
        outputs = []
        for output in passed.outputs:  # one carry may be several ys, but they are tensors of their own
            outputs.append(output.clone() if output.data_ptr() in seen else output.detach())
            seen.add(output.data_ptr())
        shown = self.shown
        exposed = tuple(state for i, state in enumerate(passed.states) if i in shown)
        hidden = tuple(state for i, state in enumerate(passed.states) if i not in shown)
        return Result(
            (*outputs, *passed.finals), (*hidden, *passed.private.values()) if save else (), exposed if save else ()
        )

    def backward(
        self, tensors: Given, saved: Sequence[Tensor], exposed: Sequence[Tensor], grads: Given, needs: Sequence[bool]
    ) -> list[Tensor | None]:
        sources, _, params = self.parts(tensors)
        need_sources, need_carries, need_params = self.parts(needs)
        sweep, outputs = self.sweep, len(grads) - self.carries
        passed = sweep.passed(saved, exposed)
        cotangents = grads[:outputs], grads[outputs:]
        asked = Asked(passed, sources, params, *cotangents, self.extent, Needs(need_sources, need_params))
        gradients = backward(sweep, self.strategy, asked)
        carries = [g if need else None for g, need in zip(gradients.carries, need_carries, strict=True)]
        return [*gradients.sources, *carries, *gradients.params]

    def shapes(self) -> tuple[list[Shape], list[Shape]]:
        recurrence, extent = self.plan.recurrence, self.extent
        outputs = [(extent.steps, extent.rows, width) for width in recurrence.outputs]
        finals = [(extent.rows, width) for width in recurrence.carries]
        kept = self.sweep.shapes(extent)
        shown = [kept[i] for i in sorted(self.shown)]
        return [*outputs, *finals], shown + [shape for i, shape in enumerate(kept) if i not in self.shown]

    def again(self, tensors: Given) -> tuple[Tensor, ...]:
        sources, carries, params = self.parts(tensors)
        outputs, finals = reference.run(self.plan.recurrence, sources, carries, params, self.extent)
        return (*outputs, *finals)


_plans: OrderedDict[Hashable, tuple[Plan | Reason, list[Any]]] = OrderedDict()
_lock = threading.Lock()


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
    with _lock:
        found = _plans.get(key)
        if found is None:
            found = make(cell, carry, carry_spec, xs, x_spec, environment, gradients), environment.opaque
            _plans[key] = found
            while len(_plans) > REMEMBERED:
                _plans.popitem(last=False)
        _plans.move_to_end(key)
        plan = found[0]
    if isinstance(plan, Reason):
        return plan
    tensors = (*carry, *xs, *plan.captured(environment))
    if not all(map(is_plain, tensors)) or len({tensor.device for tensor in tensors}) > 1:
        return Reason("tensors that are not all plain, dense and on one CPU or GPU", mend="move them, or resolve views")
    return plan, environment


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
        places = tuple(place(tensor, environment) for tensor, _ in recording.captured)
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


def place(tensor: Tensor, environment: Environment) -> int | Tensor:
    for at, known in enumerate(environment.tensors):
        if known is tensor:
            return at
    if tensor.requires_grad:
        raise Unsupported(
            Reason("the cell reaches a tensor in a way that cannot be followed", mend="make it an attribute")
        )
    return tensor


def _renew_lock() -> None:
    """In a forked child, where the thread that held it does not exist."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
