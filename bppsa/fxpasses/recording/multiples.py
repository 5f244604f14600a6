"""Which ops make of a gradient that is given a multiple of it, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from bppsa.errors import Unsupported

aten = torch.ops.aten
MEND = "use detach() and torch ops"
SAME = {aten.clone.default, aten.alias.default, aten.neg.default}
# Linear in any of the first two operands, or in both together, or in the first.
PRODUCTS = {aten.mul.Tensor, aten.mul.Scalar}
SUMS = {aten.add.Tensor, aten.sub.Tensor}
QUOTIENTS = {aten.div.Tensor, aten.div.Scalar}
CHOICES = {aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.self}  # of the second operand or the third
SETS = {aten.masked_fill.Scalar, aten.index_put.default}  # entries of the first operand to those of the third
Test = Callable[[Any], bool]  # of an argument of an op


def multiples(ones: Any, ops: Iterable[tuple[Any, Sequence[Any], Sequence[Any]]], is_zero: Test) -> set[Any]:
    """The values that are `ones` times something which does not depend on it, entry by entry. ops: the target of each,
    its arguments, and the values that it gives. is_zero: whether an argument is zeros.

    Raises Unsupported where an op makes anything else of it.
    """
    found = {ones}

    def among(argument: Any) -> bool:
        return argument.__hash__ is not None and argument in found

    for target, arguments, gives in ops:
        if any(map(among, tree_leaves(arguments))):
            if not is_multiple(target, arguments, among, is_zero):
                raise no_product(target)
            found.update(gives)
    return found


def is_multiple(target: Any, arguments: Sequence[Any], among: Test, is_zero: Test) -> bool:
    """Whether the op makes a multiple of multiples. among: whether an argument is one."""
    by = [argument for argument in arguments[:3] if among(argument)]
    if target in SAME:
        return True
    if target in PRODUCTS:
        return len(by) == 1
    if target in QUOTIENTS:
        return len(by) == 1 and among(arguments[0])
    if target in SUMS:
        return len(by) == 2
    if target in CHOICES:
        return not among(arguments[0]) and all(among(one) or is_zero(one) for one in arguments[1:3])
    if target in SETS:
        return among(arguments[0]) and is_zero(arguments[2])
    return False


def no_product(op: Any) -> Unsupported:
    return Unsupported("has a gradient of its own that is no product with that of its result", str(op), MEND)
