"""bppsa.scan: a recurrence over a cell the user wrote, fused where the cell allows it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from bppsa._calls import explaining, forward_of_model, note, strategy_of_model
from bppsa._forward import open_forward, solver_of, told
from bppsa._predict import choose_scan
from bppsa._scan_checks import Cell, check_inputs, checked, name_of
from bppsa._scan_plans import find
from bppsa._sweeps import with_structure
from bppsa.errors import BuildError, PartitionError, Reason, Unsupported, first_line
from bppsa.fxpasses.models import recording_model
from bppsa.plan.forward import AUTO as OPEN
from bppsa.plan.forward import Forward, forward_of
from bppsa.plan.strategy import AUTO, Strategy, strategy_of
from bppsa.plan.work import PYTORCH
from bppsa.report import Decision, warn_once
from bppsa.runtime import reference

# Of a model that is recorded as a chain and calls `scan`.
OWN_CHAIN = Reason("a bppsa.scan is a chain of its own", mend="it follows the strategy by itself")


def scan(
    cell: Cell,
    carry: Any,
    xs: Any,
    *,
    reverse: bool = False,
    strategy: str | Strategy | None = None,
    forward: str | Forward | None = None,
) -> tuple[Any, Any]:
    """Run `carry, y_t = cell(carry, x_t)` over the steps of `xs` and return the last carry and all ys.

    cell: a function or a Module; parameters and tensors it closes over get gradients. carry: a pytree of [B, ...]; the
    cell must return one of the same structure, shapes and dtypes. xs: a pytree of [T, B, ...], T >= 1; ys: a pytree of
    [T, ...], in the order of xs also when `reverse` runs the steps from the last to the first. strategy: of the
    backward, a name or one of `bppsa.strategies`; None is that of the compiled model this is called in, or "auto".
    forward: "sequential", "newton" (`bppsa.strategies.newton`) or "auto"; None is that of the model, or "auto".

    A cell of pointwise ops, products with parameters, slices and concatenations of features and row sums (layer norm)
    on [B, n] values runs as one generated kernel each way; any other, and a call so short that the loop is predicted to
    be faster, runs op by op, and `bppsa.explain` says why.

    Raises CarryError (a TypeError) where the carry changes, a leaf is no tensor or the cell does not return a pair,
    InputError (a RuntimeError) where xs do not agree in T. What PyTorch's ops raise within the cell keeps its type, and
    says what the cell was given.
    """
    if recording_model():
        raise Unsupported(OWN_CHAIN)
    carry_leaves, carry_spec = pytree.tree_flatten(carry)
    x_leaves, x_spec = pytree.tree_flatten(xs)
    if any(isinstance(leaf, fx.Proxy) for leaf in (*carry_leaves, *x_leaves)):
        raise PartitionError(
            f"the forward that is cut into stages calls bppsa.scan over {name_of(cell)}, which cannot be traced; cut "
            f"the model by hand, with a module that calls it as one of stages=[module, ...]"
        )
    check_inputs(carry_leaves, x_leaves)
    found = find(cell, carry_leaves, carry_spec, x_leaves, x_spec)
    steps, rows = x_leaves[0].shape[0], carry_leaves[0].shape[0] if carry_leaves and carry_leaves[0].dim() else 0
    numbers = {"T": steps, "B": rows, "H": sum(leaf.shape[-1] for leaf in carry_leaves if leaf.dim() > 1)}
    asked = strategy_of((strategy_of_model() or AUTO) if strategy is None else strategy)
    forward = forward_of((forward_of_model() or OPEN) if forward is None else forward)
    if isinstance(found, Reason):
        missed = [f"the strategy {asked}"] * (asked.name != "auto") + [f"forward {forward}"] * (
            forward.name == "newton"
        )
        if missed:
            warn_once(f"bppsa.scan runs {name_of(cell)} op by op, without {' and '.join(missed)}: {found}")
        note(Decision(name_of(cell), "scan", "pytorch", str(found), numbers))
        return reference.loop(checked(cell, carry_leaves, carry_spec), carry, xs, reverse=reverse)
    plan, environment = found
    ahead, device, training = open_forward(forward, plan.memory), x_leaves[0].device.type, torch.is_grad_enabled()
    choice = choose_scan(plan.recurrence, plan.dtype, asked, steps, rows, training, device, ahead, explaining())
    decision = Decision(name_of(cell), "scan", choice.strategy, choice.reason, numbers | choice.numbers, *choice.told)
    decision = with_structure(decision, plan.recurrence)
    if choice.strategy == PYTORCH:
        note(decision)
        return reference.loop(checked(cell, carry_leaves, carry_spec), carry, xs, reverse=reverse)
    solver = solver_of(choice.forward, plan.memory)
    try:
        how = strategy_of(choice.strategy), solver
        nexts, ys = plan.run(carry_leaves, x_leaves, plan.captured(environment), reverse, *how)
    except BuildError as error:
        warn_once(f"bppsa.scan runs cells op by op: {error}")
        note(Decision(name_of(cell), "scan", "pytorch", first_line(error), numbers))
        return reference.loop(checked(cell, carry_leaves, carry_spec), carry, xs, reverse=reverse)
    note(told(decision, plan.memory, solver, rested=ahead is not forward))
    return pytree.tree_unflatten(nexts, carry_spec), pytree.tree_unflatten(ys, plan.y_spec)
