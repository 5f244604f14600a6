"""Transposed Jacobians of layers and networks, and Jacobians in CSR: capture -> rules -> operator -> values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

import numpy
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from bppsa.decisions import Decision, Report
from bppsa.errors import RuleError, Unsupported
from bppsa.frontend.jacobian.capture import Captured, MasksByName, Model, While, check_arguments, check_masks
from bppsa.frontend.jacobian.plan import ByProducts, Coloured, JacobianPlan, Outdated, by_rows, coloured_ns
from bppsa.fxpasses.environment.known import known_environment
from bppsa.fxpasses.environment.libraries import owner
from bppsa.fxpasses.environment.walk import Environment
from bppsa.runtime.sparse import Kernels
from bppsa.sparsity import Network, TransposedJacobian
from bppsa.sparsity.checked import Checked
from bppsa.sparsity.multiplied import Multiplied
from bppsa.sparsity.patterns.colour import Colouring
from bppsa.sparsity.patterns.engine import install

install(Kernels())

BUDGET = 1 << 30


def transposed_jacobian(
    model: Model, x: Tensor, *, masks: MasksByName | None = None, budget: int = BUDGET
) -> TransposedJacobian:
    """Return J^T of a layer or a network at x [B, *n]: an operator, N x M for each row (BPPSA section 3).

    The model maps each row of x by itself, to [B, *m]; N and M are the numbers of elements of a row of either. The
    operator has `shape`, `nnz`, `pattern` (CSR: `indptr`, `indices`), `mv`, `mm`, `entries`, `dense` and
    `to_sparse_csr`. `mv` takes g [B, *m], [B, M], or [M] of one sample. What all rows share is [N, M], also for a batch
    of one; what is a row's own is [B, N, M].

    Args:
        model: a module or a function of one tensor.
        x: where, [B, *n].
        masks: of pruned weights, bool and True where a weight is kept, by the parameter's name. Those of
            `torch.nn.utils.prune` are found without.
        budget: bytes that patterns may take.

    Raises:
        RuleError: an op has no rule, or mixes the rows (a NotImplementedError).
        InputError: masks, x or a cotangent that do not fit (a RuntimeError).
        ArgumentError: no model or no tensor (a TypeError).
        BudgetError: a pattern is asked for that the budget does not hold (a MemoryError).
    """
    try:
        captured = Captured.of(model, x, masks, budget)
        return Checked(captured.at(x), captured.recording.result.meta["val"].dtype, x.device)
    except Unsupported as unsupported:
        raise RuleError(f"no transposed Jacobian: {unsupported}") from unsupported


def jacobian(model: Model, x: Tensor, *, masks: MasksByName | None = None, budget: int = BUDGET) -> Tensor:
    """Return the Jacobian of the model at x, detached, as a sparse CSR tensor: [M, N], or [B, M, N] for a batch.

    Every entry that can be non-zero is stored. The plan of the call is kept: another call with the same model and
    shapes pays for values only. Arguments and errors are those of `jacobian_plan`.
    """
    check_arguments(model, x)
    check_masks(model, masks or {})
    known, environment = known_plans(model), known_environment(model)
    key = key_of(environment, x, masks or {}, budget)
    if key in known:
        try:
            return known[key][0].run(x)
        except Outdated:
            del known[key]
    made = jacobian_plan(model, x, masks=masks, budget=budget)
    if made.again is not None:  # a plan row by row costs nothing to make
        known[key] = replace(made, again=None), environment  # neither may hold the model
    for oldest in list(known)[:-KEPT]:
        del known[oldest]
    return made.run(x)


def jacobian_plan(model: Model, x: Tensor, *, masks: MasksByName | None = None, budget: int = BUDGET) -> JacobianPlan:
    """Return how to compute the Jacobian of the model at inputs like x [B, *n]: call it, `plan(x2)`.

    Rows of J are coloured by the network's pattern, so that few vector products hold them all, or the ops' J^T are
    multiplied out, whichever is predicted to cost less; `plan.report` tells which and why. A model with an op that has
    no rule, or none for a row, gives one row of J at a time by PyTorch's autograd.

    Args:
        model: a module or a function of one tensor.
        x: an input like those to come.
        masks: of pruned weights, bool and True where a weight is kept, by the parameter's name.
        budget: bytes that patterns may take.

    Raises:
        InputError: masks or an x that do not fit (a RuntimeError).
        ArgumentError: no model or no tensor (a TypeError).
        BudgetError: patterns, or J itself, are larger than the budget (a MemoryError).
    """
    try:
        captured = Captured.of(model, x, masks, budget)
        values = captured.values(x)
        found = captured.of_values(x, values)
    except Unsupported as unsupported:
        return plan(by_rows(model, budget), x, "rows", f"one row of J at a time: {unsupported}", {})
    at = While.of(captured, values)
    given = {name: mask.clone() for name, mask in (masks or {}).items()}
    again = functools.partial(jacobian_plan, model, masks=given, budget=budget)
    colouring = Colouring.of(found.pattern)
    (n, m), nnz = found.shape, found.pattern.nnz
    numbers: dict[str, float] = {"N": n, "M": m, "nnz": nnz, "colours": colouring.count}
    ns = coloured_ns(found, colouring.count)
    multiplied = Multiplied.of(found, ns) if isinstance(found, Network) else None
    if multiplied is None:
        numbers |= {"predicted_ms": ns / 1e6}
        reason = "rows of J that share no column as one; products of the ops' J^T cost more, or cannot be had"
        return plan(Coloured.of(at, colouring, x), x, "coloured", reason, numbers, again)
    numbers |= {"products": multiplied.products, "predicted_ms": multiplied.ns / 1e6, "coloured_ms": ns / 1e6}
    reason = "products of the ops' J^T, which cost less than vector products with all colours"
    return plan(ByProducts.of(at, multiplied, x), x, "products", reason, numbers, again)


def plan(
    run: Callable[[Tensor], Tensor],
    x: Tensor,
    strategy: str,
    reason: str,
    numbers: Mapping[str, float],
    again: Callable[[Tensor], JacobianPlan] | None = None,
) -> JacobianPlan:
    report = Report((Decision("", "jacobian", strategy, reason, numbers),))
    return JacobianPlan(run, x.shape, x.dtype, x.device, report, again)


# Plans by the identity of their model, as long as it lives. An entry holds the tensors that its key knows by their ids.
_plans = WeakIdKeyDictionary()
KEPT = 16  # plans of one model


def known_plans(model: Model) -> dict[Hashable, tuple[JacobianPlan, Environment]]:
    """The plans of the model, the oldest first; those of an object that takes no weak references are not kept."""
    root = owner(model)
    if not type(root).__weakrefoffset__:
        return {}
    found: dict[Hashable, tuple[JacobianPlan, Environment]] = _plans.setdefault(root, {})
    return found


def key_of(environment: Environment, x: Tensor, masks: MasksByName, budget: int) -> Hashable:
    tensors = [id(tensor) for tensor in environment.tensors]
    return (environment.key, *tensors, *map(content, masks.items()), x.shape, x.dtype, x.device, budget)


def content(named: tuple[str, Tensor]) -> Hashable:
    """A mask by what it says: tensors of a call are gone after it, and another may have their address."""
    name, mask = named
    return name, mask.shape, numpy.packbits(mask.detach().cpu().numpy()).tobytes()
