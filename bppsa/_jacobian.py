"""Transposed Jacobians of layers and networks, and Jacobians in CSR: capture -> rules -> operator -> values."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from bppsa._jacobian_plan import ByProducts, Coloured, JacobianPlan, by_rows, coloured_ns
from bppsa.errors import OURS, ArgumentError, InputError, Reason, RuleError, Unsupported
from bppsa.fxpasses.capture import Recording, record
from bppsa.fxpasses.composites import with_composites
from bppsa.fxpasses.environment import Environment, known_environment, owner
from bppsa.fxpasses.located import located, raised_in
from bppsa.fxpasses.network import MIXES, evaluate, network
from bppsa.fxpasses.pruning import carried
from bppsa.report import Decision, Report
from bppsa.runtime.sparse import Kernels
from bppsa.sparsity import Network, TransposedJacobian
from bppsa.sparsity.checked import Checked
from bppsa.sparsity.colour import Colouring
from bppsa.sparsity.engine import install
from bppsa.sparsity.multiplied import Multiplied

install(Kernels())

Model = Callable[[Tensor], Tensor]
Masks = Mapping[str, Tensor]
BUDGET = 1 << 30


def transposed_jacobian(
    model: Model, x: Tensor, *, masks: Masks | None = None, budget: int = BUDGET
) -> TransposedJacobian:
    """J^T of a layer or a network at x [B, *n]: an operator N x M for each row of the batch (BPPSA section 3).

    The model maps each row of x by itself, to [B, *m]; N and M are the numbers of elements of a row of either. The
    operator has `shape`, `nnz`, `pattern` (CSR: `indptr`, `indices`), `mv`, `mm`, `entries`, `dense`, `to_sparse_csr`.
    `mv` takes g [B, *m], [B, M], or [M] of one sample; what is wrong with it is told by InputError.
    What all rows share is [N, M], also of a batch of one; what is a row's own is [B, N, M].

    Args:
        masks: of pruned weights, bool and True where a weight is kept, by the parameter's name. Those of
            `torch.nn.utils.prune` are found without.
        budget: bytes that patterns may take.

    Raises RuleError (a NotImplementedError) where an op has no rule or mixes the rows, InputError (a RuntimeError) for
    masks or an x that do not fit, ArgumentError (a TypeError) for what is no model or tensor, BudgetError (a
    MemoryError) when a pattern is asked for that the budget does not hold.
    """
    try:
        captured = Captured.of(model, x, masks, budget)
        return Checked(captured.at(x), captured.recording.result.meta["val"].dtype, x.device)
    except Unsupported as unsupported:
        raise RuleError(f"no transposed Jacobian: {unsupported}") from unsupported


@dataclass(frozen=True, eq=False)
class Captured:
    """A recording, and the model's own tensors in it."""

    recording: Recording
    tensors: tuple[Tensor, ...]
    masks: Mapping[fx.Node, Tensor]
    budget: int

    @classmethod
    def of(cls, model: Model, x: Tensor, masks: Masks | None, budget: int) -> Captured:
        """Raises Unsupported where the model cannot be recorded."""
        check_arguments(model, x)
        kept = masks_of(model, masks or {})
        with located(model) as where, explained(model, x):
            recording = with_composites(record(lambda x: model(x.clone()), (x,), decompose={}, where=where))
        if not isinstance(recording.result, fx.Node):
            raise Unsupported(Reason("returns more than a tensor", mend="wrap it in a function that picks one"))
        by_node = {node: kept[id(tensor)] for tensor, node in recording.captured if id(tensor) in kept}
        return cls(
            recording, tuple(tensor for tensor, _ in recording.captured), carried(recording.graph, by_node), budget
        )

    def at(self, x: Tensor) -> TransposedJacobian:
        """Raises Unsupported where an op has no rule or mixes the rows, InputError where x seems to be one sample."""
        values = evaluate(self.recording, self.tensors, x, self.masks)
        try:
            return network(self.recording, values, self.budget)
        except Unsupported as unsupported:
            if x.dim() == 1 and unsupported.reason.what == MIXES:
                mend = f"x needs a batch dimension: give x.unsqueeze(0), [1, {len(x)}], for one sample"
                what = f"x {list(x.shape)} is a batch of {len(x)} numbers, and the model mixes them; {mend}"
                raise InputError(what) from unsupported
            raise


def check_arguments(model: object, x: object) -> None:
    if not callable(model):
        raise ArgumentError(f"the model is a {type(model).__name__}; give a module or function that maps x to y")
    if not isinstance(x, Tensor):
        raise ArgumentError(f"x is a {type(x).__name__}; give a tensor [B, *n]")
    if x.dim() == 0:
        raise InputError("x has no dimension; give [B, *n], with a batch dimension: x.view(1, 1) for one number")
    if not (x.is_floating_point() or x.is_complex()):
        raise InputError(f"x {list(x.shape)} is {x.dtype}, which has no derivative; give a floating-point tensor")


@contextmanager
def explained(model: Model, x: Tensor) -> Iterator[None]:
    """Errors of PyTorch's about sizes and dtypes as ours, naming the module that ran."""
    try:
        yield
    except tuple(OURS) as error:
        if type(error) not in OURS:  # a class of the model's own, or ours
            raise
        given = f"for x {list(x.shape)} {x.dtype} on {x.device}"
        raise OURS[type(error)](f"{raised_in(model, error)}: fails {given} (PyTorch: {error})") from error


def masks_of(model: Model, given: Masks) -> dict[int, Tensor]:
    """The masks by the identity of what they mask: those given, and those that torch.nn.utils.prune keeps."""
    parameters = dict(model.named_parameters(remove_duplicate=False)) if isinstance(model, nn.Module) else {}
    found = {id(mask): mask != 0 for mask in prune_masks(model).values()}
    for name, mask in given.items():
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            raise InputError(f"masks[{name!r}]: the model has no such parameter; it has {known}")
        weight = parameters[name]
        if mask.dtype != torch.bool or mask.shape != weight.shape:
            raise InputError(
                f"masks[{name!r}] is {mask.dtype} {list(mask.shape)}; it must be torch.bool of the shape of {name}, "
                f"{list(weight.shape)}, True where a weight is kept"
            )
        found[id(weight)] = mask.clone()  # patterns are kept by it
    return found


def prune_masks(model: Model) -> dict[str, Tensor]:
    """The buffers in which torch.nn.utils.prune keeps masks: `<name>_mask` beside a parameter `<name>_orig`."""
    if not isinstance(model, nn.Module):
        return {}
    buffers = dict(model.named_buffers())
    pruned = [name.removesuffix("_orig") for name, _ in model.named_parameters() if name.endswith("_orig")]
    return {name: buffers[f"{name}_mask"] for name in pruned if f"{name}_mask" in buffers}


def jacobian(model: Model, x: Tensor, *, masks: Masks | None = None, budget: int = BUDGET) -> Tensor:
    """J of the model at x, detached, as a torch CSR tensor: [M, N] where x is [1, *n], and [B, M, N] for a batch.

    Every entry that can be non-zero is stored. The plan of the call is kept: another call with the same model and
    shapes pays for values only. `jacobian_plan` gives it, and tells of arguments and errors.
    """
    return known_plan(model, x, masks, budget)(x)


def jacobian_plan(model: Model, x: Tensor, *, masks: Masks | None = None, budget: int = BUDGET) -> JacobianPlan:
    """How to compute J of the model at inputs like x [B, *n]: `plan(x2)` does, and `plan.report` tells how and why.

    The rows of J are coloured by the network's pattern, so that few vector products hold them all; a model with an op
    that has no rule, or none for a row, gives one row of J at a time by PyTorch's autograd.

    Args, as those of `transposed_jacobian`:
        masks: of pruned weights, by the parameter's name.
        budget: bytes that patterns may take.

    Raises InputError (a RuntimeError) for masks or an x that do not fit, ArgumentError (a TypeError) for what is no
    model or tensor, and BudgetError (a MemoryError) where patterns, or J itself, are larger than the budget.
    """
    try:
        captured = Captured.of(model, x, masks, budget)
        found = captured.at(x)
    except Unsupported as unsupported:
        return plan(by_rows(model, budget), x, "rows", f"one row of J at a time: {unsupported}", {})
    colouring = Colouring.of(found.pattern)
    (n, m), nnz = found.shape, found.pattern.nnz
    numbers: dict[str, float] = {"N": n, "M": m, "nnz": nnz, "colours": colouring.count}
    ns = coloured_ns(found, colouring.count)
    multiplied = Multiplied.of(found, ns) if isinstance(found, Network) else None
    if multiplied is None:
        numbers |= {"predicted_ms": ns / 1e6}
        reason = "rows of J that share no column as one; products of the ops' J^T cost more, or cannot be had"
        return plan(Coloured.of(captured.at, colouring, x), x, "coloured", reason, numbers)
    numbers |= {"products": multiplied.products, "predicted_ms": multiplied.ns / 1e6, "coloured_ms": ns / 1e6}
    reason = "products of the ops' J^T, which cost less than vector products with all colours"
    return plan(ByProducts.of(captured.at, multiplied, x), x, "products", reason, numbers)


def plan(
    run: Callable[[Tensor], Tensor], x: Tensor, strategy: str, reason: str, numbers: Mapping[str, float]
) -> JacobianPlan:
    report = Report((Decision("", "jacobian", strategy, reason, numbers),))
    return JacobianPlan(run, x.shape, x.dtype, x.device, report)


_plans: weakref.WeakKeyDictionary[Any, dict[Any, tuple[JacobianPlan, Environment]]] = weakref.WeakKeyDictionary()
KEPT = 16  # plans of one model


def known_plan(model: Model, x: Tensor, masks: Masks | None, budget: int) -> JacobianPlan:
    """The plan of an earlier call with the same model, as long as nothing but the values of its tensors has changed."""
    check_arguments(model, x)
    environment = known_environment(model)
    kept = [*(masks or {}).values(), *prune_masks(model).values()]
    versions = [(id(tensor), tensor._version) for tensor in kept]
    tensors = [id(tensor) for tensor in environment.tensors]
    key = (environment.key, *versions, *tensors, *(masks or {}), x.shape, x.dtype, x.device, budget)
    known = _plans.setdefault(owner(model), {})
    if key not in known:
        made = jacobian_plan(model, x, masks=masks, budget=budget)
        if isinstance(made.run, (ByProducts, Coloured)):  # another holds the model, and costs nothing to make
            known[key] = made, environment
        for oldest in list(known)[:-KEPT]:
            del known[oldest]
        return made
    return known[key][0]
