"""bppsa.scan: a recurrence over a cell the user wrote, fused where the cell allows it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bppsa.decisions import Decision, warn_once, warn_without_kernels
from bppsa.errors import BuildError, CarryError, InputError, PartitionError, Reason, Unsupported, first_line
from bppsa.frontend.call_log import explaining, forward_of_model, note, strategy_of_model
from bppsa.frontend.cell.checks import CellFunction, check_inputs, checked, name_of
from bppsa.frontend.cell.fused_cell import resolved
from bppsa.frontend.cell.plans import find
from bppsa.frontend.cell.second import batch_second, swapped
from bppsa.frontend.cell.whole_alone import with_real_carry
from bppsa.frontend.ordinary import WATCHED
from bppsa.frontend.planning.decided import Missed
from bppsa.frontend.planning.forward import open_forward, solver_of, told
from bppsa.frontend.planning.predict import choose_scan
from bppsa.frontend.planning.sweeps import with_structure
from bppsa.frontend.trials import tell_of_scan
from bppsa.fxpasses.network.models import recording_model
from bppsa.plan.forward import AUTO as OPEN
from bppsa.plan.forward import Forward, forward_of
from bppsa.plan.strategy import AUTO, Strategy, strategy_of
from bppsa.plan.work import PYTORCH
from bppsa.runtime.recurrent import reference

# Why a model that is recorded as a chain is cut where it calls `scan`.
OWN_CHAIN = Reason("a bppsa.scan is a chain of its own", mend="it follows the strategy by itself")
APART = "; its first step, which may decide otherwise, is PyTorch's"


@dataclass(frozen=True)
class ScanRequest:
    """What `scan` is asked for. otherwise: numbers of truth values that the cell reads which are not as usual."""

    reverse: bool
    strategy: str | Strategy | None
    forward: str | Forward | None
    otherwise: frozenset[int] = frozenset()


def scan(
    cell: CellFunction,
    carry: Any,
    xs: Any,
    *,
    reverse: bool = False,
    strategy: str | Strategy | None = None,
    forward: str | Forward | None = None,
) -> tuple[Any, Any]:
    """Run a cell over time, as `bppsa.scan` says."""
    tell_of_scan()
    options = ScanRequest(reverse, strategy, forward)
    beside = with_real_carry(cell, carry, xs)
    if beside is not None:
        with contextlib.suppress(CarryError, InputError):  # told below of the carry as its user has it
            (last, _), ys = decided(*beside, xs, options)
            return last, ys
    return decided(cell, carry, xs, options)


def decided(cell: CellFunction, carry: Any, xs: Any, options: ScanRequest) -> tuple[Any, Any]:
    """The scan, with what it needs where the cell decides otherwise than its plan has it."""
    try:
        return scanned(cell, carry, xs, options)
    except Missed as missed:
        if not missed.otherwise:
            return by_pytorch(cell, carry, xs, options.reverse, missed.reason)
        return after_first(cell, carry, xs, replace(options, otherwise=missed.otherwise))


def after_first(cell: CellFunction, carry: Any, xs: Any, options: ScanRequest) -> tuple[Any, Any]:
    """The first step by PyTorch, as it decides otherwise than all others by truth values, and then a scan of these."""
    reverse = options.reverse
    first, rest = (-1, slice(None, -1)) if reverse else (0, slice(1, None))
    leaves, spec = pytree.tree_flatten(carry)
    nexts, y = checked(cell, leaves, spec)(carry, pytree.tree_map(lambda leaf: leaf[first], xs))
    others = pytree.tree_map(lambda leaf: leaf[rest], xs)
    try:
        last, ys = scanned(cell, nexts, others, options)
    except Missed as missed:
        last, ys = by_pytorch(cell, nexts, others, reverse, missed.reason)
    return last, pytree.tree_map(
        lambda one, more: torch.cat([more, one[None]] if reverse else [one[None], more]), y, ys
    )


def scanned(cell: CellFunction, carry: Any, xs: Any, options: ScanRequest) -> tuple[Any, Any]:
    """Raises `Missed` where the cell decides otherwise, by truth values, than its plan has it."""
    check_place(cell)
    carry_leaves, carry_spec = pytree.tree_flatten(carry)
    x_leaves, x_spec = pytree.tree_flatten(xs)
    check_inputs(carry_leaves, x_leaves)
    carry_leaves, x_leaves = resolved(carry_leaves), resolved(x_leaves)
    second = batch_second(carry_leaves, x_leaves)
    states = swapped(carry_leaves, second)  # with rows in front
    found = find(cell, states, carry_spec, x_leaves, x_spec, second, options.otherwise)
    steps, rows = x_leaves[0].shape[0], states[0].shape[0] if states and states[0].dim() else 0
    asked = strategy_of((strategy_of_model() or AUTO) if options.strategy is None else options.strategy)
    forward = forward_of((forward_of_model() or OPEN) if options.forward is None else options.forward)
    if isinstance(found, Reason):
        if options.otherwise:
            raise Missed()
        if found is not WATCHED:  # this call alone
            warn_of_missed(name_of(cell), asked, forward, found)
        return by_pytorch(cell, carry, xs, options.reverse, found)
    plan, environment, reading = found
    plan.runs.check()
    ahead, device, training = open_forward(forward, plan.memory), x_leaves[0].device.type, torch.is_grad_enabled()
    choice = choose_scan(plan.recurrence, plan.dtype, asked, steps, rows, training, device, ahead, explaining())
    numbers = sizes(carry_leaves, x_leaves) | choice.numbers
    decision = Decision(name_of(cell), "scan", choice.strategy, choice.reason, numbers, *choice.told)
    decision = with_structure(decision, plan.recurrence)
    if choice.strategy == PYTORCH:
        return by_decision(decision, cell, carry, xs, options.reverse)
    solver = solver_of(choice.forward, plan.memory)
    try:
        how = strategy_of(choice.strategy), solver, choice.kept_every
        nexts, ys = plan.run(states, x_leaves, plan.captured(environment), options.reverse, *how)
    except BuildError as error:
        warn_without_kernels(error)
        return by_pytorch(cell, carry, xs, options.reverse, first_line(error))
    except Missed:
        raise
    except Unsupported as unsupported:
        return by_pytorch(cell, carry, xs, options.reverse, unsupported.reason)
    decision = told(decision, plan.memory, solver, rested=ahead is not forward)
    note(reading.told(replace(decision, reason=f"{decision.reason}{APART}") if options.otherwise else decision))
    return pytree.tree_unflatten(swapped(nexts, second), carry_spec), pytree.tree_unflatten(ys, plan.y_spec)


def by_pytorch(cell: CellFunction, carry: Any, xs: Any, reverse: bool, why: Reason | str) -> tuple[Any, Any]:
    numbers = sizes(pytree.tree_leaves(carry), pytree.tree_leaves(xs))
    return by_decision(Decision(name_of(cell), "scan", "pytorch", str(why), numbers), cell, carry, xs, reverse)


def by_decision(decision: Decision, cell: CellFunction, carry: Any, xs: Any, reverse: bool) -> tuple[Any, Any]:
    note(decision)
    leaves, spec = pytree.tree_flatten(carry)
    return reference.loop(checked(cell, leaves, spec), carry, xs, reverse=reverse)


def sizes(carry: Sequence[Tensor], xs: Sequence[Tensor]) -> dict[str, int]:
    states = swapped(carry, batch_second(carry, xs))
    rows = states[0].shape[0] if states and states[0].dim() else 0
    return {"T": xs[0].shape[0], "B": rows, "H": sum(leaf.shape[1:].numel() for leaf in states)}


def check_place(cell: CellFunction) -> None:
    """Raises where a model that is recorded as a chain, or exported, calls `scan`."""
    if recording_model():
        raise Unsupported(OWN_CHAIN)
    if torch.compiler.is_exporting():
        raise PartitionError(
            f"the forward that is cut into stages calls bppsa.scan over {name_of(cell)}, which torch.export cannot "
            f"see; cut the model by hand, with a module that calls it as one of stages=[module, ...]"
        )


def warn_of_missed(name: str, strategy: Strategy, forward: Forward, reason: Reason) -> None:
    """Warns of what was asked for, and a loop does not do."""
    missed = [f"the strategy {strategy}"] * (strategy.name != "auto") + [f"forward {forward}"] * (
        forward.name == "newton"
    )
    if missed:
        warn_once(f"bppsa.scan runs {name} op by op, without {' and '.join(missed)}: {reason}")
