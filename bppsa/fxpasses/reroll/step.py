"""One step of a loop, cut into what is done before the scan, by it, and after it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch

from bppsa.errors import Unsupported
from bppsa.fxpasses.reroll.levels import Level, above, levels, reaching
from bppsa.fxpasses.reroll.log.lines import place
from bppsa.fxpasses.reroll.log.ops import LoggedOp, LoggedValue, draws
from bppsa.fxpasses.reroll.repetition.relate import Made, Outside, UnrolledLoop, VaryingNumber

OF_NUMBERS = "carry a number for each row, as [B] or [B, 1], or count in Python"
DRAWN = "draws random numbers by what the step before has made"
OF_DRAWN = "draw a class by torch.nn.functional.gumbel_softmax(hard=True), or numbers before the loop"
OF_OTHERS = "keep the batch in front, and one dtype"
WHOLE = (torch.int64, torch.int32)


@dataclass(frozen=True)
class StepCut:
    """Which ops leave the step besides those that have to. given: all that wait for no carry. tail: all that no carry
    waits for. whole: ops of whole numbers do not have to. moved: nor ops that move the rows, or merge them with
    features, as products with matrices of the batch do. alone: the values of a step have no rows, they are one."""

    given: bool = False
    tail: bool = False
    whole: bool = False
    alone: bool = False
    moved: bool = False


class LoopStep:
    """One step of a loop, cut into what is done before the scan, by it, and after it."""

    def __init__(
        self, ops: Sequence[LoggedOp], loop: UnrolledLoop, result: Sequence[LoggedValue], cut: StepCut
    ) -> None:
        self.ops, self.loop, self.cut = ops, loop, cut
        self.model = ops[loop.start : loop.start + loop.period]
        self.level = levels(loop, self.model)
        carried = [made for made in loop.starts if self.level[made.op] is Level.CARRIED]
        rows, self.dtype = self.common(carried)
        self.rows = None if cut.alone else rows
        self.within = {(k.op, k.item) for relations in loop.relations for k in relations if isinstance(k, Made)}
        self.tail: set[int] = set()
        self.read = self.read_after(result)  # by what is behind the loop
        self.tail = self.find_tail(carried)
        self.read = self.read_after(result)
        self.before = self.find_before()
        self.carries: dict[Made, int] = {}
        self.outputs = self.find_outputs()
        self.needed = self.find_needed()
        self.check_carries()

    def common(self, carried: Sequence[Made]) -> tuple[int, torch.dtype]:
        """The rows of what is carried, and its dtype, or that of its parts where it is complex."""
        values = [self.made(made) for made in carried]
        if any(0 in value.shape for value in values):
            raise Unsupported("carries a tensor without elements", mend="an empty batch is left to PyTorch")
        real = [value for value in values if value.dtype.is_floating_point or value.dtype.is_complex]
        shaped = [value for value in real if value.shape or self.cut.alone]
        if not shaped:
            what = "single numbers, and no row for each of the batch" if real else "whole numbers or truth values alone"
            raise Unsupported(f"carries {what}: a scan's kernels compute rows of real or complex numbers")
        widest = max(shaped, key=lambda value: len(value.shape) > 1)
        return (widest.shape[0] if widest.shape else 0), widest.dtype.to_real()

    def made(self, made: Made) -> LoggedValue:
        return self.model[made.op].outs[made.item]

    def is_row(self, value: LoggedValue) -> bool:
        rows = self.rows is None or (len(value.shape) > 0 and value.shape[0] == self.rows)
        known = (self.dtype, self.dtype.to_complex(), torch.bool)
        return rows and (value.dtype in known or (self.cut.whole and value.dtype in WHOLE))

    def has_place(self, value: LoggedValue) -> bool:
        """Whether a kernel may hold it, between carries and outputs that are rows."""
        if self.cut.moved and self.rows is not None and value.dtype is self.dtype:
            return prod(value.shape) % self.rows == 0
        return self.is_row(value)

    def read_of(self, j: int) -> list[LoggedValue]:
        """What an op gives, but for what nobody reads where it gives several things."""
        outs = self.model[j].outs
        return [value for value in outs if (j, value.item) in self.within or (j, value.item) in self.read] or list(outs)

    def find_tail(self, carried: Sequence[Made]) -> set[int]:
        """Ops done after the scan: what no kernel can hold, and what reads that."""
        level = self.level
        odd = [j for j in range(self.loop.period) if not all(map(self.has_place, self.read_of(j)))]
        found = {j for j in odd if level[j] is Level.CARRIED}
        if self.cut.tail:
            reads = [
                {relation.op for relation in relations if isinstance(relation, Made)}
                for relations in self.loop.relations
            ]
            waiting = {made.op for made in carried if made.op not in found}
            within = set().union(*(above(reads, op) for op in waiting))
            found |= {j for j in range(self.loop.period) if level[j] is Level.CARRIED and j not in within}
        found = reaching(self.loop, found)
        if all(made.op in found for made in carried):
            drawn = next((self.model[j] for j in odd if draws(self.model[j])), None)
            if drawn is not None:
                raise Unsupported(DRAWN, str(drawn.target), OF_DRAWN, place(drawn.lines))
            what = ", ".join(sorted({f"{list(v.shape)} of {v.dtype}" for j in odd for v in self.model[j].outs}))
            line = place(self.model[odd[0]].lines) if odd else ""
            mend = OF_NUMBERS if any(not v.shape for j in odd for v in self.model[j].outs) else OF_OTHERS
            raise Unsupported(f"its carry waits for values of other shapes or dtypes ({what})", "", mend, line)
        return found

    def read_after(self, result: Sequence[LoggedValue]) -> dict[tuple[int, int], set[int]]:
        """The steps in which a value is read after the scan, by value of the step."""
        found: dict[tuple[int, int], set[int]] = {}
        read = [value for op in (*self.ops_behind(), *self.ops[self.loop.stop :]) for value in op.operands]
        for value in (*read, *result):
            if value.op is not None and self.loop.start <= value.op.at < self.loop.stop:
                step, j = divmod(value.op.at - self.loop.start, self.loop.period)
                found.setdefault((j, value.item), set()).add(step)
        return found

    def find_before(self) -> set[int]:
        """Ops that wait for no carry, and cannot be in a kernel or are read elsewhere."""
        given = {j for j, level in enumerate(self.level) if level is Level.GIVEN}
        found = {j for j in given if self.cut.given or not self.fits(j) or any(key[0] == j for key in self.read)}
        for relations in self.loop.relations:
            found |= {
                relation.op
                for relation in relations
                if isinstance(relation, Made) and relation.before and relation.op in given
            }
        for j in reversed(range(self.loop.period)):
            if j in found:
                found |= {
                    relation.op
                    for relation in self.loop.relations[j]
                    if isinstance(relation, Made) and relation.op in given
                }
        return found

    def fits(self, j: int) -> bool:
        """Whether an op that waits for no carry may be done in the kernel."""
        op, relations = self.model[j], self.loop.relations[j]
        if draws(op) or any(isinstance(relation, VaryingNumber) for relation in relations):
            return False
        read = [
            value
            for relation in relations
            if isinstance(relation, Outside) and not relation.is_same
            for value in relation.values[:1]
        ]
        return all(map(self.is_row, (*op.outs, *read)))

    def find_outputs(self) -> dict[tuple[int, int], int]:
        """The values of a step that the scan returns for all steps, and their numbers."""
        found: dict[tuple[int, int], int] = {}
        for (j, item), steps in self.read.items():
            inside = self.level[j] is Level.CARRIED and j not in self.tail
            if inside and not (steps == {self.loop.steps - 1} and Made(j, item, 1) in self.loop.starts):
                found[j, item] = len(found)
        return found

    def find_needed(self) -> list[int]:
        """The ops of the kernel, and on the way the carries that they read."""
        finals = [Made(j, i, 1) for (j, i), steps in self.read.items() if (j, i) not in self.outputs]
        for made in finals:
            if self.level[made.op] is Level.CARRIED and made.op not in self.tail:
                self.carry(made)
        found: set[int] = set()
        waiting = [j for j, _ in self.outputs]
        done = 0
        while waiting or done < len(self.carries):
            if not waiting:
                made = list(self.carries)[done]
                done += 1
                waiting.append(made.op)
                if made.before > 1:
                    self.carry(Made(made.op, made.item, made.before - 1))
                continue
            j = waiting.pop()
            if j in found or not self.is_inside(j):
                continue
            found.add(j)
            for relation in self.loop.relations[j]:
                if isinstance(relation, Made):
                    if relation.before and self.level[relation.op] is Level.CARRIED:
                        self.carry(relation)
                    elif not relation.before:
                        waiting.append(relation.op)
        return sorted(found)

    def is_inside(self, j: int) -> bool:
        return self.level[j] is not Level.SAME and j not in self.before and j not in self.tail

    def carry(self, made: Made) -> int:
        return self.carries.setdefault(made, len(self.carries))

    def check_carries(self) -> None:
        if not self.carries:
            raise Unsupported("no later step reads what a step has made")
        if not all(map(self.is_row, (*map(self.made, self.carries), *self.outputs_of_step()))):
            raise Unsupported("its batch is not the first dimension of what it hands on")
        for made in self.carries:
            value, start = self.made(made), self.loop.starts.get(made)
            if start is None:
                raise Unsupported("what is carried begins within the loop")
            if (start.shape, start.dtype) != (value.shape, value.dtype):
                what = f"a carry begins as {list(start.shape)} of {start.dtype}, and becomes {list(value.shape)}"
                raise Unsupported(f"{what} of {value.dtype}", mend="begin with its shape and dtype")

    def ops_before(self) -> Iterator[LoggedOp]:
        """What stays as it is, before the scan: ops that are the same in all steps once, others for each step."""
        for step, j in itertools.product(range(self.loop.steps), range(self.loop.period)):
            if j in self.before or (step == 0 and self.level[j] is Level.SAME):
                yield self.op(step, j)

    def ops_behind(self) -> Iterator[LoggedOp]:
        pairs = itertools.product(range(self.loop.steps), range(self.loop.period))
        return (self.op(step, j) for step, j in pairs if j in self.tail)

    def op(self, step: int, j: int) -> LoggedOp:
        return self.ops[self.loop.start + step * self.loop.period + j]

    def value(self, j: int, item: int, step: int) -> LoggedValue:
        return self.op(step, j).outs[item]

    def outputs_of_step(self) -> list[LoggedValue]:
        return [self.made(Made(j, item)) for j, item in self.outputs]

    def finals(self) -> dict[LoggedValue, int]:
        """Values that are a carry behind the last step, and which."""
        last = self.loop.steps - 1
        return {self.value(made.op, made.item, last): i for made, i in self.carries.items() if made.before == 1}

    def places(self, carries: int) -> dict[LoggedValue, tuple[int, int]]:
        """Where each value is that the scan returns: in which of its outputs, and at which step."""
        return {
            self.value(j, item, step): (carries + i, step)
            for (j, item), i in self.outputs.items()
            for step in range(self.loop.steps)
        }

    def same_values(self) -> dict[LoggedValue, LoggedValue]:
        """What is the same in all steps is that of the first."""
        return {
            value: self.value(j, item, 0)
            for j, level in enumerate(self.level)
            if level is Level.SAME
            for item in range(len(self.model[j].outs))
            for value in (self.value(j, item, step) for step in range(1, self.loop.steps))
        }
