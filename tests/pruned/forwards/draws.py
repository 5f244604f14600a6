"""Forwards that draw random numbers: each call draws new ones, from whichever generator it asks."""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.pruned.forwards.net import Net, table

DRAWS, case = table()


@case
class PythonRandom(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * random.random() + random.uniform(-1, 1)


@case
class PythonBranch(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * 2 if random.random() < 0.5 else torch.sin(h)


@case
class PythonChoice(Net):
    def between(self, h: Tensor) -> Tensor:
        order = [0, 1, 2, 3]
        random.shuffle(order)
        return h[:, order] * random.choice([1.0, 2.0]) + random.randint(0, 3)


@case
class OwnPythonRandom(Net):
    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(0)

    def between(self, h: Tensor) -> Tensor:
        return h * self.random.random()


@case
class NumpyRandom(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * np.random.rand() + float(np.random.normal())


@case
class NumpyPermutation(Net):
    def between(self, h: Tensor) -> Tensor:
        return h[:, np.random.permutation(4).tolist()]


@case
class OwnNumpyRandom(Net):
    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(0)

    def between(self, h: Tensor) -> Tensor:
        return h + torch.from_numpy(self.random.standard_normal((4, 6, 6)))


@case
class NoiseOfFixedSize(Net):
    def between(self, h: Tensor) -> Tensor:
        return h + torch.randn(4, 6, 6, dtype=h.dtype) * torch.rand(4, 1, 1, dtype=h.dtype)


@case
class NoiseOfTheBatch(Net):
    def between(self, h: Tensor) -> Tensor:
        h = h + 0.1 * torch.randn_like(h)
        return h * torch.rand(h.shape[0], 1, 1, 1, dtype=h.dtype)


@case
class Permutation(Net):
    def between(self, h: Tensor) -> Tensor:
        return h[:, torch.randperm(4)] + h[torch.randperm(len(h))]


@case
class Drawn(Net):
    def between(self, h: Tensor) -> Tensor:
        h = h * torch.bernoulli(torch.full_like(h, 0.5)) + torch.empty(6, dtype=h.dtype).uniform_(-1, 1)
        return h + torch.normal(0.0, 1.0, (6, 1), dtype=h.dtype) * torch.randint(0, 3, (4, 1, 1))


@case
class DrawnFromActivations(Net):
    def between(self, h: Tensor) -> Tensor:
        chosen = torch.multinomial(h.detach().abs().flatten(1) + 0.1, 3)
        return h * h.flatten(1).gather(1, chosen).sum(1)[:, None, None, None]


@case
class GumbelSoftmax(Net):
    def between(self, h: Tensor) -> Tensor:
        return F.gumbel_softmax(h, tau=0.7, dim=1)


@case
class Mixup(Net):
    def between(self, h: Tensor) -> Tensor:
        share = torch.distributions.Beta(torch.tensor(0.4), torch.tensor(0.4)).sample()
        return h * share + h.flip(0) * (1 - share)


@case
class OwnGenerator(Net):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def between(self, h: Tensor) -> Tensor:
        return h + torch.randn(4, 6, 6, dtype=h.dtype, generator=self.generator)


@case
class SeedsItself(Net):
    def between(self, h: Tensor) -> Tensor:
        torch.manual_seed(3)
        return h + torch.randn(4, 6, 6, dtype=h.dtype)


@case
class LayerDrop(Net):
    def between(self, h: Tensor) -> Tensor:
        for scale in (2.0, 3.0, 5.0):
            if torch.rand(1).item() < 0.5:
                h = h * scale
        return h


@case
class LayerDropOfALayer(Net):
    """The layer that is dropped is a pruned one."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if not self.training or torch.rand(()) < 0.5:
            h = h + self.conv(x.flip(-1))
        return self.last(h)


@case
class LayerDropByPython(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for _ in range(random.randint(0, 2)):
            h = h + self.conv(x.flip(-1))
        return self.last(h)


@case
class StochasticDepth(Net):
    def between(self, h: Tensor) -> Tensor:
        if not self.training:
            return h
        keep = h.new_empty(h.shape[0], 1, 1, 1).bernoulli_(0.8)
        return h + torch.sin(h) * keep.div_(0.8)


@case
class DropoutOfNumbers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.4)

    def between(self, h: Tensor) -> Tensor:
        return self.drop(h)


@case
class DropoutOfChannels(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout2d(0.4, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.conv(x)))


@case
class DropoutByFunction(Net):
    rate = 0.2

    def between(self, h: Tensor) -> Tensor:
        return F.alpha_dropout(F.dropout(h, self.rate, training=self.training), 0.1, training=self.training)

    def change(self, turn: int) -> None:
        self.rate = 0.2 + 0.1 * (turn % 3)


@case
class DropoutInEvaluation(Net):
    """As for Monte Carlo estimates, where `training=True` is the default."""

    def between(self, h: Tensor) -> Tensor:
        return F.dropout(h, 0.3)


@case
class DropoutAndNoise(Net):
    """Their order is seen in the numbers of both."""

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.first(x), 0.3) + torch.randn(4, 6, 6, dtype=x.dtype)
        return F.dropout(self.last(h), 0.3) + random.random()


@case
class DropoutOfWeights(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return F.linear(h.flatten(1), F.dropout(self.lin.weight_orig * self.lin.weight_mask, 0.5), self.lin.bias)


@case
class RandomWithAForkedState(Net):
    def between(self, h: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(11)
            h = h + torch.randn(4, 6, 6, dtype=h.dtype)
        return h * torch.rand(6, dtype=h.dtype)
