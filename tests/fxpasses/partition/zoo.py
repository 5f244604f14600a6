"""Models of all the kinds that are cut, each with inputs for a batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Call = tuple[tuple[Any, ...], dict[str, Any]]


def real(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


class Sample(nn.Module):
    def inputs(self, B: int) -> Call:
        return (real(B, 6),), {}


class Perceptron(Sample):
    def __init__(self) -> None:
        super().__init__()
        layers = ((nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Dropout(0.3)) for _ in range(4))
        self.layers = nn.Sequential(*(layer for group in layers for layer in group))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Residual(Sample):
    """With batch norms and ReLUs in place."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(6))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(6))

    def inputs(self, B: int) -> Call:
        return (real(B, 3, 4, 4),), {}

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)) + x, inplace=True)
        return x.view(x.size(0), -1)


class UNet(Sample):
    """Skips that cross several stages."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.up = nn.ModuleList(nn.Linear(12, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = torch.tanh(layer(x))
            skips.append(x)
        for layer in self.up:
            x = torch.tanh(layer(torch.cat([x, skips.pop()], -1)))
        return x


class TiedEmbedding(Sample):
    """The weight of the first layer is that of the last, and is used by a function as well."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.layers = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def inputs(self, B: int) -> Call:
        return (torch.randint(11, (B, 3)),), {}

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layers(self.embedding(x))
        return self.head(y), F.linear(y, self.embedding.weight * 2)


class Reused(Sample):
    """One module in several stages."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.own = nn.Linear(6, 6), nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.own:
            x = torch.tanh(layer(self.shared(x)))
        return self.shared(x)


class SeveralInputs(Sample):
    """Containers, keywords, numbers, flags; outputs from several stages, and an argument as it came."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))

    def inputs(self, B: int) -> Call:
        batch = {"x": real(B, 6), "pair": (real(B, 6), 3.0)}
        return (batch, real(B, 6)), {"scale": 2.5, "flag": True, "extra": real(6)}

    def forward(
        self, batch: dict[str, Any], *more: Tensor, scale: float, flag: bool, mask: Tensor | None = None, **rest: Tensor
    ) -> dict[str, Any]:
        y, (z, factor) = batch["x"], batch["pair"]
        first = self.a(y) * scale
        second = self.b(first) + z * factor
        if flag and mask is None:
            second = second + sum(more)
        last = self.d(self.c(second)) + rest["extra"]
        return {"all": [first, (second, last)], "z": z, "scale": scale, "none": None, "again": last}


class Shapes(Sample):
    """Python reads shapes, and constants and buffers are read by stages."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.bias = nn.ParameterList(torch.randn(6) for _ in range(4))
        self.register_buffer("mask", torch.ones(6, 6).tril())
        self.table = torch.arange(6.0)

    def inputs(self, B: int) -> Call:
        return (real(B, 5, 6),), {}

    def forward(self, x: Tensor) -> Tensor:
        B, T, H = x.shape
        assert T <= 6
        if x.dim() != 3 or len(x.shape) != 3:
            raise ValueError("x [B, T, H]")
        zero = torch.zeros(B, T, H, device=x.device, dtype=x.dtype)
        zero[:, 0] = self.table
        for layer, bias in zip(self.layers, self.bias, strict=True):
            x = layer(x.reshape(B * T, *x.shape[2:])).view(B, T, H) / math.sqrt(H) + bias
            x = x @ self.mask[:H] + torch.arange(T)[:, None] + zero
        return x


class Recurrent(Sample):
    """The state of one goes to the next; its outputs are taken apart late."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 5, batch_first=True)
        self.first, self.second = (nn.LSTM(n, 5, batch_first=True) for n in (5, 5))
        self.out = nn.Linear(5, 3)

    def inputs(self, B: int) -> Call:
        return (real(B, 4, 6),), {}

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        y, h = self.gru(x)
        y, state = self.first(y)
        y, last = self.second(y, state)
        return self.out(y) + h[-1].sum(), last


class Transformer(Sample):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def inputs(self, B: int) -> Call:
        return (real(B, 5, 6),), {}

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x, mask=nn.Transformer.generate_square_subsequent_mask(x.size(1)), is_causal=True)


class Attention(Sample):
    """With functional dropout, whose mode is the module's, and a mask made for all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = (nn.ModuleList(nn.Linear(6, n) for _ in range(3)) for n in (18, 6))

    def inputs(self, B: int) -> Call:
        return (real(B, 4, 6),), {}

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = (part.view(B, T, 2, C // 2).transpose(1, 2) for part in qkv(x).split(C, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1 if self.training else 0)
            x = x + F.dropout(out(y.transpose(1, 2).reshape(B, T, C)), 0.2, self.training)
        return x


class Double(torch.autograd.Function):
    """Whose backward is not that of what it computes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 3


class Regions(Sample):
    """Parts without gradients and under autocast, a custom backward, and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))
        self.c.float()
        self.d.requires_grad_(False)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        x = Double.apply(self.a(x))
        with torch.no_grad():
            target = torch.tanh(self.b(x))
            self.count += 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.c(x.float()).double()
        return self.d(y) + target + torch.rand(6) + torch.randn_like(x)


MODELS: tuple[type[Sample], ...] = (
    *(Perceptron, Residual, UNet, TiedEmbedding, Reused, SeveralInputs),
    *(Shapes, Recurrent, Transformer, Attention, Regions),
)
