"""What a step of a loop reads, as the scan gives it: its body, and the tensors that go over all steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bppsa.common.chain import is_pointwise
from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.reroll.body import Body, OperandSource
from bppsa.fxpasses.reroll.levels import Level
from bppsa.fxpasses.reroll.log.lines import place
from bppsa.fxpasses.reroll.log.ops import Like, LoggedOp, LoggedValue
from bppsa.fxpasses.reroll.repetition.relate import Made, Outside, Plain, Relation, VaryingNumber
from bppsa.fxpasses.reroll.repetition.unroll import made
from bppsa.fxpasses.reroll.step import LoopStep
from bppsa.fxpasses.reroll.views.columns import OpWriter, column, numbers, with_rows

aten = torch.ops.aten
# Ops that take a number, and take a tensor in its place; what comes after the operands, as `alpha`, has to be a number.
OF_NUMBERS = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor}
OPERANDS = 2


def body_of(step: LoopStep) -> tuple[Body, OpWriter, list[LoggedValue]]:
    """The step as a function, and ops that write what it is given for all steps."""
    reader = OperandReader(step)
    ops = tuple(reader.op(j) for j in step.needed)
    nexts = [Made(carry.op, carry.item, carry.before - 1) for carry in step.carries]
    following = tuple(reader.source(after, None) for after in nexts)
    outputs = tuple(reader.source(Made(j, item), None) for j, item in step.outputs)
    given, same = list(reader.given.values()), list(reader.same)
    if not given:  # a kernel counts the steps by what they are given
        sizes = (step.loop.steps, *(() if step.rows is None else (step.rows,)), 1)
        start = first_start(step)
        given = [reader.write(nothing_like, [start, *sizes], Like(sizes, start.dtype)).outs[0]]
    carries = tuple(map(step.made, step.carries))
    body = Body(ops, carries, tuple(given), tuple(same), following, outputs, step.rows)
    return body, reader.write, given


def differs(op: LoggedOp | None) -> Reason:
    what, mend = "a number that differs from step to step", "make it a tensor"
    return Reason(what, mend=mend) if op is None else Reason(what, str(op.target), mend, place(op.lines))


def first_start(step: LoopStep) -> LoggedValue:
    """What the first carry begins with, which lies where the scan runs."""
    return step.loop.starts[next(iter(step.carries))]


def nothing_like(start: Tensor, *sizes: int) -> Tensor:
    return start.new_zeros(sizes)


class OperandReader:
    """Where a step finds its operands; what is the same for all rows of a step is given to each of them."""

    def __init__(self, step: LoopStep) -> None:
        self.step = step
        self.write = OpWriter()
        self.given: dict[Any, LoggedValue] = {}
        self.same: dict[LoggedValue, int] = {}

    def op(self, j: int) -> tuple[int, LoggedOp, tuple[Any, ...]]:
        op, relations = self.step.model[j], self.step.loop.relations[j]
        if any(isinstance(relation, VaryingNumber) for relation in relations[OPERANDS:]):
            raise Unsupported(differs(op))
        return j, op, tuple(self.source(relation, op) for relation in relations)

    def source(self, relation: Relation, reader: LoggedOp | None) -> Any:
        step = self.step
        if isinstance(relation, Plain):
            return relation.value
        if isinstance(relation, VaryingNumber):
            return self.number(relation, reader)
        if isinstance(relation, Outside):
            return (
                self.unchanging(relation.values[0], reader) if relation.is_same else self.row(relation.values, reader)
            )
        if step.level[relation.op] is Level.SAME:
            return self.unchanging(step.value(relation.op, relation.item, 0), reader)
        if step.is_inside(relation.op):
            return (
                OperandSource("carry", step.carries[relation])
                if relation.before
                else OperandSource("made", relation.op, relation.item)
            )
        return self.row(tuple(made(relation, step.loop, k, step.ops) for k in range(step.loop.steps)), reader)

    def unchanging(self, value: LoggedValue, reader: LoggedOp | None) -> OperandSource:
        if not value.constant and len(value.shape) > 1 and value.shape[0] == self.step.rows:
            return self.row((value,) * self.step.loop.steps, reader)
        return OperandSource("same", self.same.setdefault(value, len(self.same)))

    def row(self, values: tuple[LoggedValue, ...], reader: LoggedOp | None) -> OperandSource:
        """One of `values` in each step, with rows where the others have some."""
        first, rows = values[0], self.step.rows
        lines = () if reader is None else reader.lines
        if any((value.shape, value.dtype) != (first.shape, first.dtype) for value in values):
            raise Unsupported("reads values of different shapes in its steps", path=place(lines))
        dims = len(first.shape)
        wide = len(reader.outs[0].shape) if reader is not None and is_pointwise(reader.target) else dims
        has_rows = rows is None or (wide == dims and dims > 0 and first.shape[0] == rows)
        is_alike = dims < wide or first.shape[:1] == (1,)  # for all rows
        if not has_rows and not (is_alike and reader is not None and is_pointwise(reader.target)):
            what = f"reads a value {list(first.shape)} without rows, of its own in each step"
            raise Unsupported(what, path=place(lines))
        key = values, has_rows or wide
        if key not in self.given:
            steps = column(values, self.write)
            if not has_rows and rows is not None:
                shape = (len(values), rows, *(1,) * (wide - 1 - dims), *first.shape[max(0, dims - wide + 1) :])
                steps = self.write.one(with_rows, [steps, rows, wide], shape, first.dtype)
            self.given[key] = steps
        return OperandSource("given", list(self.given).index(key))

    def number(self, relation: VaryingNumber, reader: LoggedOp | None) -> OperandSource:
        known = self.step.dtype, self.step.dtype.to_complex()
        if reader is None or reader.target not in OF_NUMBERS or reader.outs[0].dtype not in known:
            raise Unsupported(differs(reader))
        dims, rows = len(reader.outs[0].shape), self.step.rows
        sizes = () if rows is None else (rows, *(1,) * (dims - 1))
        key = "numbers", relation.values, dims
        if key not in self.given:
            shape = (len(relation.values), *sizes)
            args = [first_start(self.step), list(relation.values), sizes, self.step.dtype]
            self.given[key] = self.write.one(numbers, args, shape, self.step.dtype)
        return OperandSource("given", list(self.given).index(key))
