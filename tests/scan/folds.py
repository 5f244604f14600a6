"""Cells that fold what they carry: in log space, by attention, over pairs; as `matrices.py`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tests.scan.matrices import Make, Sizes, State, keys
from tests.scan.zoo import Example, T, example, random


def hmm(s: Sizes) -> Example:
    """The forward algorithm in log space."""
    transition = random(s.D, s.D)

    def cell(alpha: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        alpha = torch.logsumexp(alpha.unsqueeze(-1) + torch.log_softmax(transition, 1), 1) + x
        return alpha, torch.logsumexp(alpha, -1)

    return example(cell, random(s.B, s.D), random(T, s.B, s.D), transition)


def crf(s: Sizes) -> Example:
    """With a mask that ends sequences, as pytorch-crf has it."""
    transition, there = random(s.D, s.D), random(T, s.B, grad=False) > -0.5

    def cell(score: Tensor, given: State) -> tuple[Tensor, Tensor]:
        emission, mask = given
        following = torch.logsumexp(score.unsqueeze(2) + transition + emission.unsqueeze(1), dim=1)
        score = torch.where(mask.unsqueeze(1), following, score)
        return score, score

    return example(cell, random(s.B, s.D), (random(T, s.B, s.D), there), transition)


def viterbi(s: Sizes) -> Example:
    transition = random(s.D, s.D)

    def cell(score: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        score = (score[:, :, None] + transition).amax(1) + x
        return score, (score[:, None] - transition).amin((1, 2))

    return example(cell, random(s.B, s.D), random(T, s.B, s.D), transition)


def mlstm(s: Sizes) -> Example:
    def cell(state: State, x: State) -> tuple[State, Tensor]:
        (C, n, m), (q, k, v, i, f) = state, x
        f = -functional.softplus(-f)
        most = torch.maximum(f + m, i)
        keep, add = torch.exp(f + m - most), torch.exp(i - most)
        C = keep[..., None, None] * C + add[..., None, None] * (v.unsqueeze(-1) @ k.unsqueeze(-2))
        n = keep[..., None] * n + add[..., None] * k
        size = torch.maximum((n * q).sum(-1, keepdim=True).abs(), torch.exp(-most)[..., None])
        return (C, n, most), (C @ q.unsqueeze(-1)).squeeze(-1) / size

    carry = random(s.B, s.h, s.N, s.D), random(s.B, s.h, s.D), random(s.B, s.h)
    return example(cell, carry, (*keys(s), random(T, s.B, s.h), random(T, s.B, s.h)))


def slstm(s: Sizes) -> Example:
    w = random(s.h, s.D, 4 * s.D)

    def cell(state: State, x: Tensor) -> tuple[State, Tensor]:
        h, c, n, m = state
        i, f, z, o = (torch.einsum("bhd,hde->bhe", h, w) + x).chunk(4, -1)
        f = -functional.softplus(-f)
        most = torch.maximum(f + m, i)
        add, keep = torch.exp(i - most), torch.exp(f + m - most)
        c, n = keep * c + add * torch.tanh(z), keep * n + add
        h = torch.sigmoid(o) * c / n
        return (h, c, n, most), h.flatten(1)

    def state() -> Tensor:
        return random(s.B, s.h, s.D)

    carry = state(), state(), state().detach().abs() + 1, state()
    return example(cell, carry, random(T, s.B, s.h, 4 * s.D), w)


def content_addressed(s: Sizes) -> Example:
    """A memory that is read and written where it is like a key (NTM)."""

    def cell(memory: Tensor, given: State) -> tuple[Tensor, Tensor]:
        key, erase, add = given
        length = (memory * memory).sum(-1).sqrt() * (key * key).sum(-1, keepdim=True).sqrt() + 1e-3
        w = torch.softmax(3 * (memory @ key.unsqueeze(-1)).squeeze(-1) / length, -1)
        read = torch.einsum("bs,bsd->bd", w, memory)
        memory = memory * (1 - w.unsqueeze(-1) * erase.sigmoid().unsqueeze(1)) + w.unsqueeze(-1) * add.unsqueeze(1)
        return memory, read

    return example(cell, random(s.B, s.N, s.D), tuple(random(T, s.B, s.D) for _ in range(3)))


def attention(s: Sizes) -> Example:
    """A decoder over a memory that it closes over."""
    memory, w, u = random(s.B, s.N, s.D), random(s.D, s.D), random(s.D, s.D)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.softmax(torch.bmm(memory, h.unsqueeze(2)).squeeze(2) / 2, 1)
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        h = torch.tanh(h @ w + context @ u + x)
        return h, weights

    return example(cell, random(s.B, s.D), random(T, s.B, s.D), memory, w, u)


def additive_attention(s: Sizes) -> Example:
    """Bahdanau's, some of the memory masked."""
    memory, w, u, v = random(s.B, s.N, s.D), random(s.D, s.D), random(s.D, s.D), random(s.D)
    absent = random(s.B, s.N, grad=False) > 0.5
    absent[:, 0] = False
    parameters = torch.nn.Parameter(w.detach()), torch.nn.Parameter(u.detach())

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        query, keys = functional.linear(h, parameters[0]), functional.linear(memory, parameters[1])
        scores = torch.tanh(query.unsqueeze(1) + keys) @ v
        weights = torch.softmax(scores.masked_fill(absent, -torch.inf), 1)
        h = torch.tanh(h + torch.einsum("bs,bsd->bd", weights, memory) + x)
        return h, weights

    return example(cell, random(s.B, s.D), random(T, s.B, s.D), memory, *parameters, v)


def bodies(s: Sizes) -> Example:
    """Gravity between h points."""

    def cell(state: State, x: Tensor) -> tuple[State, Tensor]:
        place, speed = state
        apart = place.unsqueeze(1) - place.unsqueeze(2)
        size = (apart * apart).sum(-1) + 0.1
        speed = speed + 0.1 * ((apart / (size * size.sqrt()).unsqueeze(-1)).sum(2) + x)
        return (place + 0.1 * speed, speed), place

    return example(cell, (random(s.B, s.h, 3), random(s.B, s.h, 3)), random(T, s.B, s.h, 3))


def normed_heads(s: Sizes) -> Example:
    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        z = functional.layer_norm(h + x, (s.D,))
        z = z * torch.rsqrt(z.pow(2).mean((1, 2), keepdim=True) + 1e-5)
        return torch.tanh(z), z.softmax(1)

    return example(cell, random(s.B, s.h, s.D), random(T, s.B, s.h, s.D))


FOLDS: tuple[Make, ...] = (
    hmm,
    crf,
    viterbi,
    mlstm,
    slstm,
    content_addressed,
    attention,
    additive_attention,
    bodies,
    normed_heads,
)
