"""The sum of each stage's weight gradients over a worker's micro-batches, in the order of these: bitwise repeatable."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from torch import Tensor

Grads = dict[str, Tensor]  # by the model's names; what has no gradient is not there


class Sum:
    """The first gradients are borrowed: autograd gives the same memory to several weights, or to a weight and to the
    stage before. From the second on they are the sum's own, and added to in place."""

    def __init__(self) -> None:
        self.grads: Grads = {}
        self.own: set[str] = set()

    def add(self, grads: Grads) -> None:
        for name, grad in grads.items():
            if name in self.own:
                self.grads[name].add_(grad)
            elif name in self.grads:
                self.grads[name] = self.grads[name] + grad
                self.own.add(name)
            else:
                self.grads[name] = grad

    def take(self, names: Sequence[str]) -> Grads:
        """Those of some weights, which nobody else holds."""
        found = {name: self.grads.pop(name) for name in names if name in self.grads}
        return {name: grad if name in self.own else grad.clone() for name, grad in found.items()}


class Sums:
    """Of one worker. A gradient that comes before its turn, as lanes and some orders bring it, waits."""

    def __init__(self, batches: Mapping[int, Sequence[int]]) -> None:
        """batches: of each stage, the micro-batches whose gradients the worker computes."""
        self.turns = {stage: sorted(numbers) for stage, numbers in batches.items()}
        self.sums = {stage: Sum() for stage in batches}
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

    def whole(self) -> Grads:
        return self.of(sorted(self.sums), sorted({name for one in self.sums.values() for name in one.grads}))

    def of(self, stages: Sequence[int], names: Sequence[str]) -> Grads:
        """What the worker has computed of some weights' gradients, over these stages in their order."""
        grads: Grads = {}
        for stage in stages:
            if stage in self.sums:
                grads = summed(grads, self.sums[stage].take(names))
        return grads


def summed(a: Grads, b: Grads) -> Grads:
    """Adds into the tensors of a, which nobody else holds."""
    for name, grad in b.items():
        a[name] = a[name].add_(grad) if name in a else grad
    return a
