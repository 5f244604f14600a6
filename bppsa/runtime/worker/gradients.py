"""The sum of each stage's weight gradients over a worker's micro-batches, in the order of these: bitwise repeatable."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import Tensor

Grads = dict[str, Tensor]  # by the model's names; what has no gradient is not there


class GradientSum:
    """own: names whose gradient is the sum's own memory, and is added to in place. The first one that comes is borrowed
    as a rule: autograd gives the same memory to several weights, or to a weight and to the stage before."""

    def __init__(self) -> None:
        self.grads: Grads = {}
        self.own: set[str] = set()

    def add(self, grads: Grads, own: Collection[str] = ()) -> None:
        """own: names whose gradient nobody else holds."""
        for name, grad in grads.items():
            if name in self.own:
                self.grads[name].add_(grad)
            elif name in self.grads:
                self.grads[name] = self.grads[name] + grad
                self.own.add(name)
            else:
                self.grads[name] = grad
                if name in own:
                    self.own.add(name)

    def take(self, names: Collection[str]) -> tuple[Grads, set[str]]:
        """The gradients of some weights, which it gives up, and which of them were its own."""
        return {name: self.grads.pop(name) for name in names if name in self.grads}, self.own.intersection(names)

    def result(self) -> Grads:
        """All, held by nobody else."""
        return {name: grad if name in self.own else grad.clone() for name, grad in self.grads.items()}


class Sums:
    """Adds up the gradients of one worker. One that comes before its turn, as lanes and some orders bring it, waits."""

    def __init__(self, batches: Mapping[int, Sequence[int]]) -> None:
        """batches: of each stage, the micro-batches whose gradients the worker computes."""
        self.turns = {stage: sorted(numbers) for stage, numbers in batches.items()}
        self.sums = {stage: GradientSum() for stage in batches}
        self.early: dict[tuple[int, int], Grads] = {}
        self.lock = threading.Lock()

    def add(self, stage: int, batch: int, grads: Grads) -> bool:
        """Whether that was the stage's last."""
        with self.lock:
            self.early[stage, batch] = grads
            turns = self.turns[stage]
            while turns and (stage, turns[0]) in self.early:
                self.sums[stage].add(self.early.pop((stage, turns.pop(0))))
            return not turns

    def whole(self) -> GradientSum:
        return self.of(sorted(self.sums), sorted({name for one in self.sums.values() for name in one.grads}))

    def of(self, stages: Sequence[int], names: Sequence[str]) -> GradientSum:
        """What the worker has computed of some weights' gradients, over these stages in their order; it is given up."""
        found = GradientSum()
        for stage in stages:
            if stage in self.sums:
                found.add(*self.sums[stage].take(names))
        return found


def total(sums: Iterable[GradientSum]) -> Grads:
    """Over workers in their order."""
    found = GradientSum()
    for one in sums:
        found.add(one.grads, one.own)
    return found.result()
