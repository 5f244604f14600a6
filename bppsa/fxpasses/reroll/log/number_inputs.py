"""Ops that take a followed number, with an input of the log in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bppsa.fxpasses.reroll.log.numbers import Arithmetic
from bppsa.fxpasses.reroll.log.ops import Like, LoggedValue

aten = torch.ops.aten


class OpCall(NamedTuple):
    func: Any
    leaves: list[Any]
    spec: Any


class NumberInputs:
    """values: by the term and dtype that each stands for. append: writes an op down."""

    def __init__(self, arithmetic: Arithmetic, append: Callable[..., Any]) -> None:
        self.arithmetic, self.append = arithmetic, append
        self.values: dict[tuple[int, torch.dtype], LoggedValue] = {}

    def read(self, call: OpCall, make: Callable[[int, torch.dtype], LoggedValue], out: Tensor) -> OpCall:
        """The op on an input, where it takes one number of those that torch was just handed."""
        handed, name = self.arithmetic.handed, call.func._schema.name.removesuffix("_")
        at = [i for i, leaf in enumerate(call.leaves) if type(leaf) is float and leaf in handed]
        spell = SPELLED.get((name, call.func._schema.overload_name, *at))
        dtype = dtype_of(call, out)
        if spell is None or dtype is None:
            return call
        number = call.leaves[at[0]]
        place = handed[number], dtype
        if place not in self.values:
            self.values[place] = make(*place)
        self.arithmetic.taken.add(number)
        return spell(self, call, self.values[place])

    def operand(self, call: OpCall, value: LoggedValue) -> OpCall:
        return call._replace(leaves=[call.leaves[0], value, *call.leaves[2:]])

    def compared(self, call: OpCall, value: LoggedValue) -> OpCall:
        return self.operand(call._replace(func=call.func._overloadpacket.Tensor), value)

    def weight(self, call: OpCall, value: LoggedValue) -> OpCall:
        return OpCall(call.func._overloadpacket.Tensor, [*call.leaves[:2], value], call.spec)

    def reflected(self, call: OpCall, value: LoggedValue) -> OpCall:
        return OpCall(aten.sub.Tensor, [value, call.leaves[0]], BINARY)

    def scaled(self, call: OpCall, value: LoggedValue) -> OpCall:
        other = call.leaves[1]
        made = self.append(aten.mul.Tensor, [other, value], BINARY, [Like(other.shape, value.dtype)])
        return OpCall(call.func, [call.leaves[0], made.outs[0]], BINARY)


BINARY = ((None, None), ())
# By the op's name, overload, and where the number is among its leaves.
SPELLED: Mapping[tuple[Any, ...], Callable[[NumberInputs, OpCall, LoggedValue], OpCall]] = {
    **{(f"aten::{name}", "Tensor", 1): NumberInputs.operand for name in ("add", "sub", "mul", "div")},
    **{(f"aten::{name}", "Scalar", 1): NumberInputs.compared for name in ("gt", "lt", "ge", "le", "eq", "ne")},
    **{(f"aten::{name}", "Tensor", 2): NumberInputs.scaled for name in ("add", "sub")},
    ("aten::rsub", "Scalar", 1): NumberInputs.reflected,
    ("aten::lerp", "Scalar", 2): NumberInputs.weight,
}


def dtype_of(call: OpCall, out: Any) -> torch.dtype | None:
    """The dtype in which the op would take the number; None where that is no real one."""
    if not isinstance(out, Tensor) or not call.leaves or not isinstance(call.leaves[0], LoggedValue):
        return None
    dtype = out.dtype
    if dtype is torch.bool:
        operand = call.leaves[0].dtype
        dtype = operand if operand.is_floating_point else torch.get_default_dtype()
    dtype = dtype.to_real() if dtype.is_complex else dtype
    return dtype if dtype.is_floating_point else None
