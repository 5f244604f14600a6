"""Models as people write them: small ones of each family, with the habits of each that make them hard to cut."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.fxpasses.partition.zoo import Call, Sample

WORDS = 11


class Images(Sample):
    def inputs(self, B: int) -> Call:
        return (torch.randn(B, 3, 8, 8),), {}


class Words(Sample):
    def inputs(self, B: int) -> Call:
        return (torch.randint(WORDS, (B, 5)),), {}


class Vectors(Sample):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def inputs(self, B: int) -> Call:
        return (torch.randn(B, 6),), {}


class ResNet(Images):
    """In-place activations and sums, and a batch norm behind each convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(4))
        self.relu, self.pool, self.fc = nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i in range(0, 4, 2):
            identity = x
            out = self.relu(self.norms[i](self.convs[i](x)))
            out = self.norms[i + 1](self.convs[i + 1](out))
            out += identity
            x = self.relu(out)
        return self.fc(torch.flatten(self.pool(x), 1))


class DropPath(nn.Module):
    """Stochastic depth: other calls in training than in evaluation. It keeps all here, so that results are fixed."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(1.0)
        return x * mask * 2


class EfficientNet(Images):
    """Depthwise convolutions, squeeze and excitation, stochastic depth."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.ModuleList(nn.Conv2d(3, 6, 1) for _ in range(3))
        self.depthwise = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1, groups=6) for _ in range(3))
        self.squeeze = nn.ModuleList(nn.Conv2d(6, 6, 1) for _ in range(3))
        self.project = nn.ModuleList(nn.Conv2d(6, 3, 1) for _ in range(3))
        self.drop = DropPath()

    def forward(self, x: Tensor) -> Tensor:
        for expand, depthwise, squeeze, project in zip(
            self.expand, self.depthwise, self.squeeze, self.project, strict=True
        ):
            y = F.silu(depthwise(F.silu(expand(x), inplace=True)), inplace=True)
            y = torch.sigmoid(squeeze(y.mean((2, 3), keepdim=True))) * y
            y = self.drop(project(y))
            y += x
            x = y
        return x.mean((2, 3))


class Inception(Images):
    """A second output in training, from a head that evaluation does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(3, 2, k, padding=k // 2) for k in (1, 3, 5))
        self.aux, self.fc = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        x = torch.cat([branch(x) for branch in self.branches], 1).mean((2, 3))
        aux = self.aux(x * 2) if self.training else None
        out = self.fc(F.dropout(x, 0.0, training=self.training))
        return (out, aux) if self.training else out


class UNet(Images):
    """Skips, and paddings computed from sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.c = nn.ConvTranspose2d(4, 4, 2, 2), nn.Conv2d(8, 2, 3, padding=1)

    def inputs(self, B: int) -> Call:
        return (torch.randn(B, 3, 9, 7),), {}

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.a(x))
        x = self.up(torch.relu(self.b(F.max_pool2d(first, 2))))
        rows, columns = first.size()[2] - x.size()[2], first.size()[3] - x.size()[3]
        x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return self.c(torch.cat([first, x], dim=1))


class ViT(Images):
    """A class token for each row of the batch; attention without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, 4)
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        self.qkv, self.out = (nn.ModuleList(nn.Linear(8, n) for _ in range(3)) for n in (24, 8))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        B, _, H, W = x.shape
        assert H == W == 8, f"input of size {H} x {W}"
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.position
        for qkv, out in zip(self.qkv, self.out, strict=True):
            N = x.shape[1]
            q, k, v = qkv(self.norm(x)).reshape(B, N, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 * 0 if self.training else 0.0)
            x = x + out(y.transpose(1, 2).reshape(B, N, 8))
        return self.head(x[:, 0])


class Bert(Words):
    """A batch of keywords, a mask made for a dtype, a dict of outputs; the embedding is the head's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, 8, padding_idx=0), nn.Embedding(9, 8)
        self.register_buffer("positions", torch.arange(9).expand((1, -1)), persistent=False)
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(8, 8) for name in ("q", "k", "v", "o")}) for _ in range(2)
        )
        self.norm, self.pooler, self.head = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, WORDS)
        self.head.weight = self.word.weight

    def inputs(self, B: int) -> Call:
        mask = (torch.arange(5) < torch.randint(2, 6, (B, 1))).long()
        return (), {"input_ids": torch.randint(1, WORDS, (B, 5)), "attention_mask": mask}

    def heads(self, x: Tensor) -> Tensor:
        return x.view((*x.size()[:-1], 2, 4)).permute(0, 2, 1, 3)

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **flags: bool
    ) -> dict[str, Tensor]:
        if input_ids is None:
            raise ValueError("give input_ids")
        B, T = input_ids.size()
        if attention_mask is None:
            attention_mask = torch.ones((B, T), device=input_ids.device)
        mask = attention_mask[:, None, None, :].to(dtype=self.word.weight.dtype)
        mask = (1.0 - mask) * torch.finfo(mask.dtype).min
        h = self.word(input_ids)
        h += self.place(self.positions[:, :T])
        h = self.norm(h)
        for layer in self.layers:
            q, k, v = (self.heads(layer[name](h)) for name in ("q", "k", "v"))
            weights = (q @ k.transpose(-1, -2) / math.sqrt(4) + mask).softmax(-1)
            context = (weights @ v).permute(0, 2, 1, 3).contiguous()
            h = self.norm(layer["o"](context.view((*context.size()[:-2], 8))) + h)
        return {"logits": self.head(h), "pooled": torch.tanh(self.pooler(h[:, 0]))}


class Llama(Words):
    """Complex rotations kept in an attribute that is moved to the input's device; a mask for the length at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, 8), nn.Parameter(torch.ones(8))
        self.qkv, self.out = (nn.ModuleList(nn.Linear(8, n, bias=False) for _ in range(3)) for n in (24, 8))
        angles = torch.outer(torch.arange(9), 1 / 100 ** (torch.arange(0, 4, 2).double() / 4))
        self.turns = torch.polar(torch.ones_like(angles), angles)

    def turned(self, x: Tensor, turns: Tensor) -> Tensor:
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * turns[None, :, None]).flatten(3).type_as(x)

    def forward(self, tokens: Tensor) -> Tensor:
        B, T = tokens.shape
        h = self.embed(tokens)
        self.turns = self.turns.to(h.device)
        mask = None
        if T > 1:
            mask = torch.full((T, T), float("-inf"), device=tokens.device).triu(diagonal=1).type_as(h)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            x = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * self.norm
            q, k, v = (part.view(B, T, 2, 4) for part in qkv(x).chunk(3, -1))
            q, k = (self.turned(part, self.turns[:T]) for part in (q, k))
            scores = torch.einsum("bihd,bjhd->bhij", q, k) / 2
            h = h + out(torch.einsum("bhij,bjhd->bihd", (scores + mask).softmax(-1), v).reshape(B, T, -1))
        return h[:, -1]


class LanguageModel(Words):
    """An LSTM whose first state is made like a parameter; its decoder is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.rnn, self.decoder = nn.Embedding(WORDS, 6), nn.LSTM(6, 6, 2), nn.Linear(6, WORDS)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        weight = next(self.parameters())
        state = (weight.new_zeros(2, tokens.size(0), 6), weight.new_zeros(2, tokens.size(0), 6))
        y, (h, _) = self.rnn(self.encoder(tokens.t()), state)
        return F.log_softmax(self.decoder(y), dim=-1).transpose(0, 1), h.transpose(0, 1)


class Experts(Vectors):
    """Each expert is given the rows that choose it; the rows are found by what the tensors hold."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.layers[0](x).softmax(-1).topk(2, dim=-1)
        y = torch.zeros_like(x)
        for e, expert in enumerate(list(self.layers)[1:]):
            rows, slot = torch.where(chosen == e)
            y.index_add_(0, rows, weights[rows, slot, None] * expert(x[rows]))
        return y


class Parametrized(Vectors):
    """Weights that are computed, read by layers and by hand."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers[:2]:
            parametrizations.weight_norm(layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return F.linear(x, self.layers[0].weight) + self.layers[1].weight.sum()


class HyperNetwork(Vectors):
    """A parameter is the input of a layer, whose output is a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.z, self.makes = nn.Parameter(torch.randn(4)), nn.Linear(4, 36)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.makes(self.z).view(6, 6)
        for layer in self.layers:
            x = torch.tanh(layer(F.linear(x, weight)))
        return x


class Overwritten(Vectors):
    """A layer's output is read, changed through a view, and read again."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers[0](x)
        a = self.layers[1](torch.tanh(h))
        h.view(-1, 2, 3)[:, 0].zero_()
        return a + self.layers[2](h) + self.layers[3](x)


class Teacher(Vectors):
    """A branch without gradients."""

    @torch.no_grad()
    def target(self, x: Tensor) -> Tensor:
        return self.layers[3](x)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        target = self.target(x)
        for layer in self.layers[:3]:
            x = torch.tanh(layer(x))
        return x, (x - target).pow(2).mean(-1)


class Questions(Vectors):
    """Python asks for classes, rows, names and lengths."""

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor) and torch.is_tensor(x):
            x = x * 2
        B, said = len(x), f"batch of {x.shape}"
        assert x.dtype in (torch.float32, torch.float64), said
        x = x + torch.eye(B, dtype=x.dtype) @ torch.ones(B, 1, dtype=x.dtype)
        for layer, function in zip(self.layers, ["tanh", "sigmoid"] * 2, strict=True):
            x = getattr(torch, function)(layer(x)) / max(1, len(self.layers))
        return x


class Checkpointed(Vectors):
    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = checkpoint(lambda y, layer=layer: torch.tanh(layer(y)), x, use_reentrant=i % 2 == 1)
        return x


class Norms(Images):
    """That keep statistics, each in its way."""

    def __init__(self) -> None:
        super().__init__()
        convs = (nn.Conv2d(i, 4, 3) for i in (3, 4, 4))
        instance = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        norms = (nn.BatchNorm2d(4, momentum=None), instance, nn.GroupNorm(2, 4))
        pairs = zip(convs, norms, strict=True)
        self.layers = nn.Sequential(*(part for pair in pairs for part in (*pair, nn.ReLU(inplace=True))))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).flatten(1)


FAMILIES: tuple[type[Sample], ...] = (
    *(ResNet, EfficientNet, Inception, UNet, ViT, Bert, Llama, LanguageModel, Experts, Parametrized, HyperNetwork),
    *(Overwritten, Teacher, Questions, Checkpointed, Norms),
)
