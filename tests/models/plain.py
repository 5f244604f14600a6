"""Models of torch alone, as they are written by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from tests.models.case import (
    CLASSES,
    WORDS,
    Call,
    Case,
    Cases,
    images,
    of_all,
    of_class,
    of_words,
    padded,
    reals,
    text,
    words,
)
from tests.models.case import classes as some_classes

SIZES = {"dim_feedforward": 24, "dropout": 0.0, "batch_first": True}


class Encoder(nn.Module):
    """Words that are nothing but filling are neither looked at nor counted."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, CLASSES)
        layer = nn.TransformerEncoderLayer(16, 2, **SIZES, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(16), enable_nested_tensor=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.encoder(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        counted = attention_mask[..., None].to(x.dtype)
        return self.head((x * counted).sum(1) / counted.sum(1))


class Translator(nn.Module):
    """Both halves read one table of words; the mask is made for the text at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS, bias=False)
        self.transformer = nn.Transformer(16, 2, 2, 2, **SIZES)
        self.head.weight = self.embedding.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=self.head.weight.dtype)
        x = self.transformer(self.embedding(source), self.embedding(target), tgt_mask=mask, tgt_is_causal=True)
        return self.head(x)


class Twice(nn.Sequential):
    """Two convolutions, as in every level of a U-Net."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layers = ((nn.Conv2d(n, outputs, 3, padding=1), nn.BatchNorm2d(outputs)) for n in (inputs, outputs))
        super().__init__(*(part for pair in layers for part in (*pair, nn.ReLU(inplace=True))))


class UNet(nn.Module):
    """Skips go from the way down to the way up, at each of three levels."""

    def __init__(self) -> None:
        super().__init__()
        widths = (4, 8, 12)
        self.down = nn.ModuleList(Twice(a, b) for a, b in zip((3, *widths), widths, strict=False))
        self.bottom = Twice(12, 16)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(widths, (*widths[1:], 16), strict=True))
        self.merge = nn.ModuleList(Twice(2 * a, a) for a in widths)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.down:
            skips.append(down(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for up, merge, skip in zip(self.up[::-1], self.merge[::-1], reversed(skips), strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        return self.head(x)


class LanguageModel(nn.Module):
    """Three layers: an embedding, an LSTM, and a decoder that has the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(WORDS, 12), nn.Linear(12, WORDS)
        self.rnn = nn.LSTM(12, 12, 2, batch_first=True)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        y, _ = self.rnn(self.embedding(tokens))
        return self.decoder(y)


class Siamese(nn.Module):
    """One network is called for each of two pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(
            nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3, 2), nn.ReLU()
        )
        self.project = nn.Linear(8, 6)

    def one(self, x: Tensor) -> Tensor:
        return F.normalize(self.project(self.tower(x).mean((2, 3))), dim=-1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a, b = self.one(left), self.one(right)
        return torch.cat([a * b, (a - b).abs()], -1)


class Heads(nn.Module):
    """Several outputs by name, one of them without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(6, 6), nn.GELU())))
        self.mean, self.scale = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> dict[str, Any]:
        h = self.body(x)
        mean, scale = self.mean(h), F.softplus(self.scale(h))
        return {"mean": mean, "spread": {"scale": scale, "log": scale.log()}, "best": mean.argmax(-1)}


class Loss(nn.Module):
    """A model that returns its loss, and beside it what it is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(6, 6), nn.Tanh())))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.body(x))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def vectors(rows: int, g: Generator) -> Call:
    return (reals(6)(rows, g),), {}


def vectors_with_labels(rows: int, g: Generator) -> Call:
    return (reals(6)(rows, g),), {"labels": some_classes(rows, g)}


def pairs(rows: int, g: Generator) -> Call:
    return (reals(3, 12, 12)(rows, g), reals(3, 12, 12)(rows, g)), {}


def translated(rows: int, g: Generator) -> Call:
    return (words(rows, g), words(rows, g, 5)), {}


def next_words(rows: int, g: Generator) -> Tensor:
    return words(rows, g, 5)


def of_mean(output: dict[str, Any], target: Tensor) -> Tensor:
    """A likelihood, which does not read all outputs."""
    return ((target[:, None] - output["mean"]) / output["spread"]["scale"]).square().mean() + output["spread"][
        "log"
    ].mean()


PLAIN: Cases = {
    "nn.TransformerEncoder": Case(Encoder, padded, some_classes, of_class),
    "nn.Transformer": Case(Translator, translated, next_words, of_words),
    "u-net": Case(UNet, images(16), reals(), of_all),
    "tied lstm": Case(LanguageModel, text, words, of_words, stages=3),
    "siamese": Case(Siamese, pairs, reals(), of_all),
    "a dict of outputs": Case(Heads, vectors, reals(), of_mean),
    "a dict with the loss": Case(Loss, vectors_with_labels, None, None),
}
