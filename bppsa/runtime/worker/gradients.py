"""The sum of each stage's weight gradients over a worker's micro-batches, in the order of these: bitwise repeatable."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from torch import Tensor

Grads = dict[str, Tensor]  # by the model's names; what has no gradient is not there


class Sums:
    """Of one worker. A gradient that comes before its turn, as lanes and some orders bring it, waits."""

    def __init__(self, batches: Mapping[int, Sequence[int]]) -> None:
        """batches: of each stage, the micro-batches whose gradients the worker computes."""
        self.turns = {stage: sorted(numbers) for stage, numbers in batches.items()}
        self.sums: dict[int, Grads] = {stage: {} for stage in batches}
        self.early: dict[tuple[int, int], Grads] = {}
        self.lock = threading.Lock()

    def add(self, stage: int, batch: int, grads: Grads) -> bool:
        """Whether that was the stage's last."""
        with self.lock:
            self.early[stage, batch] = grads
            turns = self.turns[stage]
            while turns and (stage, turns[0]) in self.early:
                added = self.early.pop((stage, turns.pop(0)))
                self.sums[stage] = summed(self.sums[stage], added)
            return not turns

    def whole(self) -> Grads:
        return self.of(sorted(self.sums), sorted({name for own in self.sums.values() for name in own}))

    def of(self, stages: Sequence[int], names: Sequence[str]) -> Grads:
        """What the worker has computed of some weights' gradients, over these stages in their order."""
        grads: Grads = {}
        for stage in stages:
            own = self.sums.get(stage, {})
            grads = summed(grads, {name: own.pop(name) for name in names if name in own})
        return grads


def summed(a: Grads, b: Grads) -> Grads:
    """Adds into the tensors of a, which nobody else holds."""
    for name, grad in b.items():
        a[name] = a[name].add_(grad) if name in a else grad
    return a
