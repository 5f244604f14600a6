"""The registry of rules, keyed by `OpOverload`: a second rule for a target is an error, a missing one is data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import ops
from torch._ops import OpOverload

from bppsa.errors import Reason, Unsupported

aten = ops.aten
# A rule takes an op's arguments and, by keyword, its output. It returns one J^T operator for each tensor argument in
# flattened order, None where no gradient flows; for an op with several outputs, a tuple of these, one for each output.
Rule = Callable[..., tuple[Any, ...]]
R = TypeVar("R", bound=Rule)
RULES: dict[OpOverload, Rule] = {}
# PyTorch raises an error for a gradient through one of these.
UNDERIVED = frozenset(
    {
        *(aten.heaviside.default, aten.floor_divide.default, aten.floor_divide.Scalar, aten.nextafter.default),
        *(aten.remainder.Scalar_Tensor, aten.special_zeta.default, aten.special_zeta.other_scalar),
    }
)


def rule(*targets: OpOverload) -> Callable[[R], R]:
    """Register the decorated function as the rule of each target, e.g. `@rule(torch.ops.aten.tanh.default)`."""

    def register(function: R) -> R:
        for target in targets:
            if not isinstance(target, OpOverload):
                raise TypeError(f"a rule is keyed by an OpOverload, e.g. torch.ops.aten.tanh.default; got {target!r}")
            if target in RULES:
                raise RuntimeError(f"{target} already has a rule, in {RULES[target].__module__}")
            RULES[target] = function
        return function

    return register


def lookup(target: Any) -> Rule | Reason:
    """The rule of a graph node's target, or why there is none."""
    found = RULES.get(target)
    if found is None and target in UNDERIVED:
        return Reason("has no derivative in PyTorch either", op=str(target), mend="take it of h.detach()")
    return found or Reason("no rule for its transposed Jacobian", op=str(target), mend="kept as a VJP")


def rule_of(target: Any) -> Rule:
    """Raises `Unsupported` where there is none."""
    found = lookup(target)
    if isinstance(found, Reason):
        raise Unsupported(found)
    return found
