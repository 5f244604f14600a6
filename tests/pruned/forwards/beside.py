"""Forwards with hooks, and with layers of other kinds beside the pruned ones."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from tests.pruned.forwards.net import Net, table

BESIDE, case = table()


@case
class HooksFromTheStart(Net):
    def __init__(self) -> None:
        super().__init__()
        self.act, self.called = nn.ReLU(), 0
        self.conv.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.conv.register_forward_hook(lambda module, args, y: y + 1)
        self.act.register_full_backward_hook(lambda module, to_inputs, to_outputs: (to_inputs[0] * 3,))
        self.register_forward_hook(self.count)

    def count(self, *_: Any) -> None:
        self.called += 1

    def between(self, h: Tensor) -> Tensor:
        return self.act(h)


@case
class HookWithinForward(Net):
    def forward(self, x: Tensor) -> Tensor:
        caught: list[Tensor] = []
        handle = self.conv.register_forward_hook(lambda module, args, y: caught.append(y))
        h = self.first(x)
        handle.remove()
        return self.last(h + caught[0])


@case
class BesideAGru(Net):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(24, 24, batch_first=True)

    def between(self, h: Tensor) -> Tensor:
        y, last = self.gru(h.transpose(1, 2).flatten(2))
        return h + y.view(-1, 6, 4, 6).transpose(1, 2) * last.mean()


@case
class BesideAttention(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(24, 2, 8, dropout=0.1, batch_first=True)

    def finish(self) -> None:
        """Attention reads its weights without a call of the layer: pruned, PyTorch's own are those of long ago."""
        self.double()
        for layer in (self.conv, self.lin):
            prune.l1_unstructured(layer, "weight", 0.5)

    def between(self, h: Tensor) -> Tensor:
        return h + self.layer(h.transpose(1, 2).flatten(2)).view(-1, 6, 4, 6).transpose(1, 2)


@case
class Norms(Net):
    """Of several kinds; one averages over all calls, one has no statistics. In between what no scale passes, or the
    gradients of a scale before another norm would be nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4, momentum=None), nn.GroupNorm(2, 4)])
        self.norms += [nn.BatchNorm2d(4, affine=False, track_running_stats=False), nn.LayerNorm(6)]

    def between(self, h: Tensor) -> Tensor:
        for norm in self.norms:
            h = torch.tanh(norm(h))
        return h


@case
class OtherReparametrizations(Net):
    def __init__(self) -> None:
        super().__init__()
        self.normed = parametrizations.weight_norm(nn.Linear(144, 8))
        self.spectral = parametrizations.spectral_norm(nn.Linear(144, 8))

    def finish(self) -> None:
        self.double()
        prune.l1_unstructured(self.conv, "weight", 0.5)
        prune.l1_unstructured(self.conv, "bias", 0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).flatten(1)
        return self.lin(h) + self.normed(h) * self.spectral(h)


@case
class OtherLayersPruned(Net):
    """Of kinds that have no kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.transposed, self.table = nn.ConvTranspose2d(4, 4, 3, padding=1), nn.Embedding(5, 6)
        self.line = nn.Conv1d(6, 6, 3, padding=1)

    def finish(self) -> None:
        super().finish()
        for layer in (self.transposed, self.table, self.line):
            prune.random_unstructured(layer, "weight", 0.4)

    def between(self, h: Tensor) -> Tensor:
        h = self.transposed(h) + self.table(torch.arange(len(h)) % 5)[:, None, None]
        return h + self.line(h[:, 0])[:, None]


@case
class CalledByMethods(Net):
    """Its owner calls another method of it as well."""

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))

    def encode(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))

    def decode(self, h: Tensor) -> Tensor:
        return self.lin(h.flatten(1))

    def inputs(self, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.code = self.encode(x)
        return (x,), {}

    def loss(self, output: Any) -> Tensor:
        return super().loss([output, self.decode(self.code * 2)])


def quantised(layer: nn.Module, args: Any) -> None:
    """As fake quantisation, weight standardisation and noise are written: behind the hook that prunes."""
    layer.weight = (layer.weight * 4).round() / 4 + layer.weight * 0.5


@case
class HookThatSetsTheWeight(Net):
    def finish(self) -> None:
        super().finish()
        self.conv.register_forward_pre_hook(quantised)


@case
class HookThatSetsABias(Net):
    def finish(self) -> None:
        super().finish()
        prune.l1_unstructured(self.lin, "bias", 0.5)
        self.lin.register_forward_pre_hook(lambda layer, args: setattr(layer, "bias", layer.bias + 1))


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.weight: Any = self.weight * 2
        return F.linear(x, self.weight, self.bias)


@case
class LayerThatSetsItsWeight(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lin = Doubled(144, 8)


@case
class HookThatLooksAtTheWeight(Net):
    def finish(self) -> None:
        super().finish()
        self.norms: list[float] = []
        self.conv.register_forward_pre_hook(lambda layer, args: self.norms.append(layer.weight.detach().norm().item()))
