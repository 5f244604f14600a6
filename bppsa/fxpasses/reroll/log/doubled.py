"""A log as it would be in double precision: where loop and scan differ there too, it is not by rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bppsa.fxpasses.reroll.log.ops import CallInput, Like, Log, LoggedOp, LoggedValue
from bppsa.fxpasses.reroll.log.replay import Replay

DOUBLE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


class Doubler:
    """A replay's log once more, with values of its own. values: those of the log, by the value that they stand for."""

    def __init__(self, replay: Replay) -> None:
        self.values = {value: self.given(value) for value in replay.given}
        ops = [self.op(op) for op in replay.ops]
        arguments, captured, literals, numbers = ([self.values[value] for value in group] for group in replay.groups)
        self.log = Log(ops[replay.prologue :], ops[: replay.prologue], captured, literals, arguments, numbers)

    @property
    def changes(self) -> bool:
        return any(value.dtype in DOUBLE for value in self.values)

    def given(self, value: LoggedValue) -> LoggedValue:
        given = value.given
        assert given is not None
        if given.literal is not None:
            given = CallInput(literal=in_double(given.literal))
        return self.like(value, LoggedValue(doubled(value), given=given))

    def op(self, op: LoggedOp) -> LoggedOp:
        made = LoggedOp(op.target, [self.leaf(leaf) for leaf in op.leaves], op.spec, op.grad, op.lines)
        made.gives(*map(doubled, op.outs), single=op.single)
        self.values |= {old: self.like(old, new) for old, new in zip(op.outs, made.outs, strict=True)}
        return made

    def leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, LoggedValue):
            return self.values[leaf]
        return DOUBLE.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    def like(self, value: LoggedValue, new: LoggedValue) -> LoggedValue:
        new.constant = value.constant
        return new


def doubled(value: LoggedValue) -> Like:
    return Like(value.shape, DOUBLE.get(value.dtype, value.dtype))


def in_double(tensor: Tensor) -> Tensor:
    """A leaf with the same numbers."""
    same = tensor.detach().to(DOUBLE.get(tensor.dtype, tensor.dtype))
    return same.requires_grad_(tensor.requires_grad)
