"""What is read of a loop after it: the scan's outputs of all steps where they are put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from bppsa.fxpasses.reroll.log.ops import LoggedOp, LoggedValue
from bppsa.fxpasses.reroll.views.columns import OpWriter

aten = torch.ops.aten
MANY = 4  # steps, from which on they are taken apart at once


class OutputSlice(NamedTuple):
    """A slice of one output, from a step on, ahead or back; or one value."""

    output: int
    first: int
    many: int
    step: int
    value: LoggedValue | None = None


class Assembler:
    """outs: of the scan. finals: values that are one of its last carries. places: of values of a step, in which of its
    outputs they are, and where."""

    def __init__(
        self,
        outs: Sequence[LoggedValue],
        finals: Mapping[LoggedValue, int],
        places: Mapping[LoggedValue, tuple[int, int]],
    ) -> None:
        self.outs, self.places = outs, places
        self.write = OpWriter()
        self.stands: dict[LoggedValue, LoggedValue] = {value: outs[i] for value, i in finals.items()}
        self.copies: dict[LoggedValue, LoggedValue] = {}

    def same(self, values: Mapping[LoggedValue, LoggedValue]) -> None:
        self.stands |= values

    def read_by(self, op: LoggedOp) -> Iterator[LoggedOp]:
        """`op`, reading what stands for the values of the loop, behind what has to be written for that."""
        if op.target in JOINED and self.join(op):
            pass
        else:
            op.leaves = [self.stand_in(leaf) for leaf in op.leaves]
        yield from self.taken()
        yield op

    def taken(self) -> list[LoggedOp]:
        ops, self.write.ops = self.write.ops, []
        return ops

    def stand_in(self, leaf: Any) -> Any:
        if not isinstance(leaf, LoggedValue):
            return leaf
        if leaf not in self.stands and leaf in self.places:
            output, step = self.places[leaf]
            out = self.outs[output]
            self.stands[leaf] = self.write.one(aten.select.int, [out, 0, step], leaf.shape, leaf.dtype)
        return self.stands.get(leaf, leaf)

    def alone(self, value: LoggedValue) -> LoggedValue:
        """What is returned for `value`: a tensor of its own, as it would be without a scan."""
        stands = self.stand_in(value)
        if stands is value or stands in self.outs or value not in self.places:
            return stands
        if value not in self.copies:
            self.copies[value] = self.write.one(aten.clone.default, [stands], value.shape, value.dtype)
        return self.copies[value]

    def join(self, op: LoggedOp) -> bool:
        """Whether `op`, a stack or a cat, has become one of whole slices of outputs."""
        count = len(op.spec[0][0])
        items, rest = op.leaves[:count], op.leaves[count:]
        pieces = list(self.pieces(items))
        if all(piece.value is not None for piece in pieces):
            return False
        out = op.outs[0]
        dim = (rest[0] if rest else 0) % len(out.shape)
        stacked = op.target is aten.stack.default
        parts = [self.part(piece, dim, stacked) for piece in pieces]
        if len(parts) == 1:
            part = self.write.ops.pop()
            op.target, op.leaves, op.spec = part.target, part.leaves, part.spec
        else:
            op.join(parts, dim)
        return True

    def pieces(self, items: Sequence[LoggedValue]) -> Iterator[OutputSlice]:
        at = 0
        while at < len(items):
            piece = self.longest(items, at)
            yield piece
            at += piece.many

    def longest(self, items: Sequence[LoggedValue], at: int) -> OutputSlice:
        """The slice of one output that begins with items[at]."""
        here = self.places.get(items[at])
        there = self.places.get(items[at + 1]) if at + 1 < len(items) else None
        if here is None or there is None or here[0] != there[0] or abs(there[1] - here[1]) != 1:
            return OutputSlice(-1, 0, 1, 1, items[at])
        step, count = there[1] - here[1], 2
        while at + count < len(items) and self.places.get(items[at + count]) == (here[0], here[1] + count * step):
            count += 1
        return OutputSlice(here[0], here[1], count, step)

    def part(self, piece: OutputSlice, dim: int, stacked: bool) -> LoggedValue:
        if piece.value is not None:
            value = self.stand_in(piece.value)
            if not stacked:
                return value
            shape = [*value.shape[:dim], 1, *value.shape[dim:]]
            return self.write.one(aten.unsqueeze.default, [value, dim], shape, value.dtype)
        out = self.outs[piece.output]
        first = piece.first if piece.step > 0 else piece.first - piece.many + 1
        one = out.shape[1:]
        if stacked:
            shape = [*one[:dim], piece.many, *one[dim:]]
        else:
            shape = [*one[:dim], piece.many * one[dim], *one[dim + 1 :]]
        args = [out, first, piece.many, piece.step, dim]
        return self.write.one(along if stacked else end_to_end, args, shape, out.dtype)


JOINED = (aten.stack.default, aten.cat.default)


def along(out: torch.Tensor, first: int, count: int, step: int, dim: int) -> torch.Tensor:
    """Steps of [T, ...], along `dim`, and in memory as a stack of them would be."""
    taken = out if count == len(out) else out[first : first + count]
    ordered = taken if step > 0 else taken.flip(0)
    return (ordered if dim == 0 else ordered.movedim(0, dim)).contiguous()


def end_to_end(out: torch.Tensor, first: int, count: int, step: int, dim: int) -> torch.Tensor:
    return along(out, first, count, step, dim).flatten(dim, dim + 1)


def unbound(ops: Sequence[LoggedOp], scan: LoggedOp) -> list[LoggedOp]:
    """The ops, with one unbind in the place of many selects of steps: backward, each of those writes a gradient of all
    steps."""
    ops = list(ops)
    for out in scan.outs:
        selects = [op for op in ops if op.target is aten.select.int and op.leaves[:2] == [out, 0]]
        if len(selects) >= MANY:
            write = OpWriter()
            each = write(aten.unbind.int, [out, 0], *[selects[0].outs[0]] * out.shape[0], single=False)
            stands = {op.outs[0]: each.outs[op.leaves[2]] for op in selects}
            ops = [op for op in ops if op.outs[0] not in stands]
            for op in ops:
                op.put(stands)
            ops.insert(ops.index(scan) + 1, each)
    return ops
