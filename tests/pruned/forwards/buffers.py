"""Forwards that read, compute with and write buffers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.pruned.forwards.net import Net, table

BUFFERS, case = table()


class WithBuffers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.linspace(-1, 1, 4)[:, None, None].clone())
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))


@case
class ReadsBuffers(WithBuffers):
    def between(self, h: Tensor) -> Tensor:
        return (h - self.mean) * (self.steps + 1)

    def change(self, turn: int) -> None:
        self.mean.mul_(1.5)
        self.steps.fill_(turn)


@case
class ComputesWithBuffers(WithBuffers):
    """With buffers alone, which a tracer folds."""

    def between(self, h: Tensor) -> Tensor:
        factor = 1 / (1 + self.mean.square().sum() + self.steps.double())
        return h * factor + (self.mean * 2).exp()

    def change(self, turn: int) -> None:
        self.mean.add_(0.1)


@case
class LoadsBuffers(ComputesWithBuffers):
    def change(self, turn: int) -> None:
        state = {name: value.clone() for name, value in self.state_dict().items()}
        state["mean"], state["steps"] = state["mean"] - 0.2, state["steps"] + 3
        self.load_state_dict(state, assign=turn % 2 == 1)


@case
class ChangesBuffers(WithBuffers):
    def between(self, h: Tensor) -> Tensor:
        self.steps += 1
        self.mean.mul_(0.9).add_(h.detach().mean((0, 2, 3))[:, None, None], alpha=0.1)
        return h - self.mean


@case
class ChangesBuffersAfterReading(WithBuffers):
    def between(self, h: Tensor) -> Tensor:
        h = h - self.mean.clone()
        with torch.no_grad():
            self.mean.copy_(h.mean((0, 2, 3))[:, None, None])
            self.steps.add_(1)
        return h * self.steps


@case
class AssignsBuffers(WithBuffers):
    def between(self, h: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean((0, 2, 3))[:, None, None]
        self.steps = self.steps + 1
        return h - self.mean


@case
class AssignsDataOfBuffers(WithBuffers):
    def between(self, h: Tensor) -> Tensor:
        self.mean.data = h.detach().mean((0, 2, 3))[:, None, None]
        return h - self.mean


@case
class RegistersABuffer(Net):
    def between(self, h: Tensor) -> Tensor:
        if not hasattr(self, "start"):
            self.register_buffer("start", h.detach().mean((0, 2, 3), keepdim=True))
        return h - self.start


@case
class QueueOfKeys(WithBuffers):
    """As MoCo's: a place that moves along."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(self.first(x))
        place = int(self.steps)
        self.queue[place] = y[0].detach()
        self.steps[...] = (place + 1) % 8
        return y @ self.queue + y


@case
class CountsInABuffer(WithBuffers):
    def between(self, h: Tensor) -> Tensor:
        self.steps += 1
        return h * 2 if self.steps % 2 == 0 else torch.sin(h)


@case
class MovingAverageOfWeights(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(8, 144))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        self.average.lerp_((self.lin.weight_orig * self.lin.weight_mask).detach(), 0.1)
        return self.last(h) + F.linear(h.flatten(1), self.average)


@case
class ReadsCountsOfABatchNorm(Net):
    """After the batch norm has counted this call too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def between(self, h: Tensor) -> Tensor:
        h = self.norm(h)
        return h * (1 / (1 + self.norm.num_batches_tracked.item())) + self.norm.num_batches_tracked.to(h.dtype)


@case
class MasksChangedAfterTheirProduct(Net):
    """By ops whose first argument is not the mask."""

    def forward(self, x: Tensor) -> Tensor:
        mask = self.lin.weight_mask
        with torch.no_grad():
            weight = self.lin.weight_orig * mask
            torch._foreach_mul_([mask], 0.0)
        y = F.linear(self.first(x).flatten(1), weight, self.lin.bias)
        mask.add_(1.0)
        return y
