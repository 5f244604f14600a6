"""bppsa.scan: a recurrence over a cell the user wrote, fused where the cell allows it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from bppsa.decisions import Decision, warn_once, warn_without_kernels
from bppsa.errors import BuildError, PartitionError, Reason, Unsupported, first_line
from bppsa.frontend.call_log import explaining, forward_of_model, note, strategy_of_model
from bppsa.frontend.cell.checks import CellFunction, check_inputs, checked, name_of
from bppsa.frontend.cell.fused_cell import resolved
from bppsa.frontend.cell.plans import find
from bppsa.frontend.cell.second import batch_second, swapped
from bppsa.frontend.planning.forward import open_forward, solver_of, told
from bppsa.frontend.planning.predict import choose_scan
from bppsa.frontend.planning.sweeps import with_structure
from bppsa.fxpasses.network.models import recording_model
from bppsa.plan.forward import AUTO as OPEN
from bppsa.plan.forward import Forward, forward_of
from bppsa.plan.strategy import AUTO, Strategy, strategy_of
from bppsa.plan.work import PYTORCH
from bppsa.runtime.recurrent import reference

# Why a model that is recorded as a chain is cut where it calls `scan`.
OWN_CHAIN = Reason("a bppsa.scan is a chain of its own", mend="it follows the strategy by itself")


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
    check_place(cell)
    carry_leaves, carry_spec = pytree.tree_flatten(carry)
    x_leaves, x_spec = pytree.tree_flatten(xs)
    check_inputs(carry_leaves, x_leaves)
    carry_leaves, x_leaves = resolved(carry_leaves), resolved(x_leaves)
    second = batch_second(carry_leaves, x_leaves)
    states = swapped(carry_leaves, second)  # with rows in front
    found = find(cell, states, carry_spec, x_leaves, x_spec, second)
    steps, rows = x_leaves[0].shape[0], states[0].shape[0] if states and states[0].dim() else 0
    numbers = {"T": steps, "B": rows, "H": sum(leaf.shape[1:].numel() for leaf in states)}
    asked = strategy_of((strategy_of_model() or AUTO) if strategy is None else strategy)
    forward = forward_of((forward_of_model() or OPEN) if forward is None else forward)

    def by_pytorch(decision: Decision) -> tuple[Any, Any]:
        note(decision)
        return reference.loop(checked(cell, carry_leaves, carry_spec), carry, xs, reverse=reverse)

    if isinstance(found, Reason):
        warn_of_missed(name_of(cell), asked, forward, found)
        return by_pytorch(Decision(name_of(cell), "scan", "pytorch", str(found), numbers))
    plan, environment, reading = found
    ahead, device, training = open_forward(forward, plan.memory), x_leaves[0].device.type, torch.is_grad_enabled()
    choice = choose_scan(plan.recurrence, plan.dtype, asked, steps, rows, training, device, ahead, explaining())
    decision = Decision(name_of(cell), "scan", choice.strategy, choice.reason, numbers | choice.numbers, *choice.told)
    decision = with_structure(decision, plan.recurrence)
    if choice.strategy == PYTORCH:
        return by_pytorch(decision)
    solver = solver_of(choice.forward, plan.memory)
    try:
        how = strategy_of(choice.strategy), solver, choice.kept_every
        nexts, ys = plan.run(states, x_leaves, plan.captured(environment), reverse, *how)
    except BuildError as error:
        warn_without_kernels(error)
        refusal = first_line(error)
    except Unsupported as unsupported:
        refusal = str(unsupported.reason)
    else:
        note(reading.told(told(decision, plan.memory, solver, rested=ahead is not forward)))
        return pytree.tree_unflatten(swapped(nexts, second), carry_spec), pytree.tree_unflatten(ys, plan.y_spec)
    return by_pytorch(Decision(name_of(cell), "scan", "pytorch", refusal, numbers))


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
