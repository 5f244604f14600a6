"""Whole numbers and truth values among a step's values: a sweep holds them as real numbers, exactly up to 2^24 or 2^53.

How large they can become is known from the ops: a step makes the largest of them larger by so much at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.common.chain import FILLS, HANDED_ON, Recurrence
from bppsa.errors import Unsupported
from bppsa.sparsity.rules.matrix_ops import CHECKED, as_one

aten = torch.ops.aten


@dataclass(frozen=True)
class MagnitudeBound:
    """|value| <= times * m + given * g + more: m is the largest whole number of the carry, g that of x and of tensors
    that the cell closes over."""

    times: float
    more: float
    given: float = 0

    @property
    def changes(self) -> bool:
        return self.times > 0 or self.given > 0


@dataclass(frozen=True)
class Growth:
    """a_step: what a step adds to the largest whole number. largest: of all values of a step. divisors: the parameters
    that whole numbers are divided by. starts: the carries that have bounds, and these."""

    a_step: MagnitudeBound
    largest: MagnitudeBound
    divisors: tuple[int, ...]
    starts: tuple[tuple[int, tuple[int, int]], ...] = ()

    def fits(self, start: float, given: float, steps: int, dtype: torch.dtype) -> bool:
        reached = start + steps * (self.a_step.given * given + self.a_step.more)
        most = self.largest
        limit = min(1 / torch.finfo(dtype).eps, 2**31)  # beyond it an int32 would begin anew
        return most.times * reached + most.given * given + most.more < limit


def growth_of(recurrence: Recurrence) -> Growth | None:
    """None where a step has no whole numbers. Raises `Unsupported` for those that might grow beyond all bounds."""
    sizes: dict[fx.Node, MagnitudeBound] = {}
    for node in recurrence.body.nodes:
        if node.op == "placeholder":
            of_carry = node.meta["role"].kind == "carry"
            number = MagnitudeBound(1, 0) if of_carry else MagnitudeBound(0, 0, 1)
            sizes[node] = number if node.meta["val"].dtype is not torch.bool else MagnitudeBound(0, 1)
        elif node.op == "call_function" and has_whole_numbers(node):
            sizes[node] = bound_of(node, sizes)
    if not any(map(is_number, sizes)):
        return None
    nexts = [sizes[node] for node in recurrence.next_carries if is_number(node)]
    if any(size.times > 1 for size in nexts):
        raise Unsupported("whole numbers that grow by more than a constant at each step", mend=MEND)
    divided = [node.args[1] for node in sizes if node.op == "call_function" and node.target in DIVIDES]
    divisors = tuple(node.meta["role"].index for node in divided if isinstance(node, fx.Node))
    found = [size for node, size in sizes.items() if is_number(node)]
    starts = tuple((node.meta["role"].index, bounds) for node in sizes if (bounds := node.meta.get("bounds")))
    return Growth(larger(None, *nexts) if nexts else MagnitudeBound(0, 0), larger(None, *found), divisors, starts)


MEND = "hold them as floating point"


def has_whole_numbers(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and not value.dtype.is_floating_point


def is_number(node: fx.Node) -> bool:
    return has_whole_numbers(node) and node.meta["val"].dtype is not torch.bool


def bound_of(node: fx.Node, sizes: dict[fx.Node, MagnitudeBound]) -> MagnitudeBound:
    if node.meta["val"].dtype is torch.bool:
        return MagnitudeBound(0, 1)
    if node.target in FILLS:
        return MagnitudeBound(0, abs(FILLS[node.target](node.args)))
    rule = SIZES.get(node.target)
    if rule is None:
        raise Unsupported("computes with whole numbers", op=str(node.target), mend=MEND)

    def known(argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return [known(item) for item in argument]
        if isinstance(argument, fx.Node):
            return sizes.get(argument, UNKNOWN) if has_whole_numbers(argument) else clamped(argument)
        return MagnitudeBound(0, abs(argument)) if isinstance(argument, (int, float)) else argument

    size = rule(node, *map(known, node.args))
    if size.more == float("inf") or size.times == float("inf"):
        raise Unsupported("whole numbers without a bound", op=str(node.target), mend=MEND)
    return size


UNKNOWN = MagnitudeBound(float("inf"), float("inf"))


def made_whole(node: fx.Node) -> bool:
    """Whether real numbers become whole ones, and the code does not bound them."""
    if node.target is not aten._to_copy.default or node.meta["val"].dtype not in (torch.int32, torch.int64):
        return False
    return bool(node.args[0].meta["val"].dtype.is_floating_point and clamped(node.args[0]) is UNKNOWN)


def within_limit(x: Tensor, *, dtype: torch.dtype, **options: Any) -> Tensor:
    """Whole numbers made of real ones: PyTorch runs a call in which one is larger than a kernel counts, or is not
    finite."""
    found = torch.where(x.detach().abs() <= MOST, x.detach(), math.nan)
    return as_one(CHECKED, found).clamp(-MOST, MOST).to(dtype)


MOST = 2**20  # of a real number that becomes a whole one; float32 counts to 2^24


def clamped(node: fx.Node) -> MagnitudeBound:
    """The bounds of a real number that is clamped on both sides."""
    if node.target is aten.clamp.default and len(node.args) == 3 and None not in node.args[1:]:
        return MagnitudeBound(0, max(abs(bound) for bound in node.args[1:]))
    return UNKNOWN


def larger(node: fx.Node | None, *sizes: Any) -> MagnitudeBound:
    known = [size for size in sizes if isinstance(size, MagnitudeBound)]
    return MagnitudeBound(*(max(getattr(size, name) for size in known) for name in ("times", "more", "given")))


def summed(
    node: fx.Node, a: MagnitudeBound, b: MagnitudeBound, alpha: MagnitudeBound = MagnitudeBound(0, 1)
) -> MagnitudeBound:
    factor = abs(node.kwargs.get("alpha", alpha.more))
    return MagnitudeBound(a.times + factor * b.times, a.more + factor * b.more, a.given + factor * b.given)


def multiplied(node: fx.Node, a: MagnitudeBound, b: MagnitudeBound) -> MagnitudeBound:
    if a.changes and b.changes:
        raise Unsupported("multiplies whole numbers that change", op=str(node.target), mend=MEND)
    a, b = (a, b) if a.changes else (b, a)
    return MagnitudeBound(a.times * b.more, a.more * b.more, a.given * b.more)


def of_row(node: fx.Node, size: MagnitudeBound, *dims: Any) -> MagnitudeBound:
    count = node.args[0].meta["val"].numel() // node.meta["val"].numel()
    return MagnitudeBound(count * size.times, count * size.more, count * size.given)


def divided(node: fx.Node, a: MagnitudeBound, b: MagnitudeBound) -> MagnitudeBound:
    """The bound of a quotient, by a number, or by a tensor that the cell closes over, which is looked at before each
    call: PyTorch raises an error for a zero."""
    divisor = node.args[1]
    role = divisor.meta.get("role") if isinstance(divisor, fx.Node) else None
    if divisor == 0 or (isinstance(divisor, fx.Node) and (role is None or role.kind != "param")):
        raise Unsupported("divides whole numbers by what changes", op=str(node.target), mend=MEND)
    return a if node.target in QUOTIENTS else b


def joined(node: fx.Node, parts: list[MagnitudeBound], *dim: Any) -> MagnitudeBound:
    return larger(node, *parts)


QUOTIENTS = {aten.floor_divide.default, aten.floor_divide.Scalar}
DIVIDES = {*QUOTIENTS, aten.remainder.Tensor, aten.remainder.Scalar, aten.fmod.Tensor, aten.fmod.Scalar}
CHOICES = {aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar}
BoundRule = Callable[..., MagnitudeBound]
FIRST: BoundRule = lambda node, size, *rest: size  # noqa: E731
SIZES: dict[Any, BoundRule] = {
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar), summed),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), multiplied),
    **dict.fromkeys((aten.maximum.default, aten.minimum.default, aten.clamp.default), larger),
    **dict.fromkeys((aten.clamp_min.default, aten.clamp_max.default, aten.masked_fill.Scalar), larger),
    **dict.fromkeys(CHOICES, larger),
    **dict.fromkeys((*HANDED_ON, aten.neg.default, aten.abs.default, aten.amax.default, aten.amin.default), FIRST),
    **dict.fromkeys((aten.slice.Tensor, aten.select.int, aten.unsqueeze.default, aten.squeeze.dim), FIRST),
    **dict.fromkeys((aten.view.default, aten._unsafe_view.default, aten.squeeze.dims, aten.expand.default), FIRST),
    **dict.fromkeys((aten.permute.default, aten.transpose.int, aten.flip.default), FIRST),
    **dict.fromkeys(DIVIDES, divided),
    aten.sign.default: lambda node, a: MagnitudeBound(0, 1),
    aten.cat.default: joined,
    aten.sum.dim_IntList: of_row,
}
