"""Cells whose states have heads or are matrices, each in the spellings their authors use.

Letters: h heads, D and N the sides of a head's state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tests.scan.zoo import Example, T, example, random


class Sizes(NamedTuple):
    B: int
    h: int
    D: int
    N: int


State = Any
Make = Callable[[Sizes], Example]


def keys(s: Sizes) -> tuple[Tensor, Tensor, Tensor]:
    """q, k [T, B, h, D] and v [T, B, h, N]."""
    return random(T, s.B, s.h, s.D), random(T, s.B, s.h, s.D), random(T, s.B, s.h, s.N)


def matrix(s: Sizes) -> Tensor:
    return random(s.B, s.h, s.D, s.N)


def retnet(s: Sizes) -> Example:
    def cell(S: Tensor, x: State) -> tuple[Tensor, Tensor]:
        q, k, v = x
        S = 0.9 * S + k.unsqueeze(-1) * v.unsqueeze(-2)
        return S, (q.unsqueeze(-2) @ S).squeeze(-2)

    return example(cell, matrix(s), keys(s))


def retnet_by_einsum(s: Sizes) -> Example:
    decay = random(s.h)

    def cell(S: Tensor, x: State) -> tuple[Tensor, Tensor]:
        q, k, v = x
        S = torch.sigmoid(decay)[None, :, None, None] * S + torch.einsum("bhd,bhn->bhdn", k, v)
        return S, torch.einsum("bhd,bhdn->bhn", q, S).flatten(1)

    return example(cell, matrix(s), keys(s), decay)


def gated_linear_attention(s: Sizes) -> Example:
    def cell(S: Tensor, x: State) -> tuple[Tensor, Tensor]:
        q, k, v, a = x
        S = a.sigmoid().unsqueeze(-1) * S + k.unsqueeze(-1) * v.unsqueeze(-2)
        return S, (q.unsqueeze(-1) * S).sum(-2)

    return example(cell, matrix(s), (*keys(s), random(T, s.B, s.h, s.D)))


def gated_linear_attention_projected(s: Sizes) -> Example:
    """From one row of x, with heads made by view."""
    width = s.h * (3 * s.D + s.N)
    w, b = random(5, width), random(width)

    def cell(S: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, a, v = (x @ w + b).split([s.h * s.D] * 3 + [s.h * s.N], 1)
        q, k, a = (part.view(-1, s.h, s.D) for part in (q, k, a.sigmoid()))
        S = a[..., None] * S + k[..., None] @ v.reshape(-1, s.h, 1, s.N)
        return S, torch.matmul(q[:, :, None], S).flatten(1)

    return example(cell, matrix(s), random(T, s.B, 5), w, b)


def delta(s: Sizes) -> Example:
    def cell(S: Tensor, x: State) -> tuple[Tensor, Tensor]:
        q, k, v, beta = x
        error = beta.sigmoid().unsqueeze(-1) * (v - (k.unsqueeze(-1) * S).sum(-2))
        S = S + k.unsqueeze(-1) * error.unsqueeze(-2)
        return S, (q.unsqueeze(-1) * S).sum(-2)

    return example(cell, matrix(s), (*keys(s), random(T, s.B, s.h)))


def gated_delta_by_einsum(s: Sizes) -> Example:
    def cell(S: Tensor, x: State) -> tuple[Tensor, Tensor]:
        q, k, v, alpha, beta = x
        S = alpha.sigmoid()[..., None, None] * S
        error = beta.sigmoid()[..., None] * (v - torch.einsum("bhdn,bhd->bhn", S, k))
        S = S + torch.einsum("bhd,bhn->bhdn", k, error)
        return S, torch.einsum("bhdn,bhd->bhn", S, q)

    return example(cell, matrix(s), (*keys(s), random(T, s.B, s.h), random(T, s.B, s.h)))


def mamba(s: Sizes) -> Example:
    """h channels, N states each."""
    log_a, skip = random(s.h, s.N), random(s.h)

    def cell(state: Tensor, given: State) -> tuple[Tensor, Tensor]:
        x, dt, b, c = given
        dt = functional.softplus(dt)
        state = torch.exp(dt.unsqueeze(-1) * -log_a.exp()) * state + (dt * x).unsqueeze(-1) * b.unsqueeze(1)
        return state, (state * c.unsqueeze(1)).sum(-1) + skip * x

    xs = random(T, s.B, s.h), random(T, s.B, s.h), random(T, s.B, s.N), random(T, s.B, s.N)
    return example(cell, random(s.B, s.h, s.N), xs, log_a, skip)


def mamba2_by_einsum(s: Sizes) -> Example:
    a = random(s.h)

    def cell(state: Tensor, given: State) -> tuple[Tensor, Tensor]:
        x, dt, b, c = given
        dt = functional.softplus(dt)
        decay = torch.exp(-dt * a.exp())
        state = state * decay[:, :, None, None] + torch.einsum("bh,bhp,bn->bhpn", dt, x, b)
        return state, torch.einsum("bhpn,bn->bhp", state, c)

    xs = random(T, s.B, s.h, s.D), random(T, s.B, s.h), random(T, s.B, s.N), random(T, s.B, s.N)
    return example(cell, matrix(s), xs, a)


def rwkv6(s: Sizes) -> Example:
    bonus = random(s.h, s.D)

    def cell(S: Tensor, x: State) -> tuple[Tensor, Tensor]:
        r, k, v, w = x
        kv = k.unsqueeze(-1) @ v.unsqueeze(-2)
        y = (r.unsqueeze(-2) @ (S + bonus.unsqueeze(-1) * kv)).squeeze(-2)
        return torch.exp(-torch.exp(w)).unsqueeze(-1) * S + kv, y

    return example(cell, matrix(s), (*keys(s), random(T, s.B, s.h, s.D)), bonus)


def rwkv7(s: Sizes) -> Example:
    """A state [N, D] with a transition that is diagonal plus rank one."""

    def cell(S: Tensor, x: State) -> tuple[Tensor, Tensor]:
        r, k, v, w, a = x
        decay = torch.exp(-torch.exp(w))
        removed = S @ (-k).unsqueeze(-1) @ (k * a.sigmoid()).unsqueeze(-2)
        S = S * decay.unsqueeze(-2) + removed + v.unsqueeze(-1) @ k.unsqueeze(-2)
        return S, (S @ r.unsqueeze(-1)).squeeze(-1)

    more = random(T, s.B, s.h, s.D), random(T, s.B, s.h, s.D)
    return example(cell, random(s.B, s.h, s.N, s.D), (*keys(s), *more))


def linear_attention(s: Sizes) -> Example:
    """With a feature map and its normaliser."""

    def cell(state: State, x: State) -> tuple[State, Tensor]:
        (S, z), (q, k, v) = state, x
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        S, z = S + torch.einsum("bhd,bhn->bhdn", k, v), z + k
        return (S, z), torch.einsum("bhd,bhdn->bhn", q, S) / (q * z).sum(-1, keepdim=True)

    return example(cell, (matrix(s), random(s.B, s.h, s.D).detach().abs()), keys(s))


def fast_weights(s: Sizes) -> Example:
    """The outer product decides what is kept; bmm on one matrix a row."""

    def cell(S: Tensor, x: State) -> tuple[Tensor, Tensor]:
        q, k, v = (part[:, 0] for part in x)
        S = torch.tanh(S + torch.bmm(k.unsqueeze(2), v.unsqueeze(1)))
        return S, torch.bmm(q.unsqueeze(1), S).squeeze(1)

    return example(cell, random(s.B, s.D, s.N), keys(s))


def heads_by_einsum(s: Sizes) -> Example:
    w = random(s.h, s.D, 2 * s.D)

    def cell(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        gate, new = (torch.einsum("bhi,hij->bhj", state, w) + x).chunk(2, -1)
        state = state + gate.sigmoid() * (torch.tanh(new) - state)
        return state, state

    return example(cell, random(s.B, s.h, s.D), random(T, s.B, s.h, 2 * s.D), w)


def heads_by_matmul(s: Sizes) -> Example:
    w, mix = random(s.h, s.D, s.D), random(s.D, s.D)

    def cell(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        own = (state.unsqueeze(-2) @ w).squeeze(-2)
        state = torch.tanh(own + functional.linear(state, mix) + x)
        return state, state.flatten(1)

    return example(cell, random(s.B, s.h, s.D), random(T, s.B, s.h, s.D), w, mix)


def heads_by_bmm(s: Sizes) -> Example:
    """With the rows second."""
    w = random(s.h, s.D, s.D)

    def cell(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.tanh(torch.bmm(state.transpose(0, 1), w).transpose(0, 1) + x)
        return state, state.reshape(state.shape[0], -1)

    return example(cell, random(s.B, s.h, s.D), random(T, s.B, s.h, s.D), w)


def dense_by_einsum(s: Sizes) -> Example:
    w = random(s.D, s.D)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(torch.einsum("bi,ij->bj", h, w) + (w @ x.T).T)
        return h, h

    return example(cell, random(s.B, s.D), random(T, s.B, s.D), w)


def reset(s: Sizes) -> Example:
    """CleanRL's way to begin anew."""
    done = (random(T, s.B, grad=False) > 0).double()

    def cell(state: Tensor, given: State) -> tuple[Tensor, Tensor]:
        x, d = given
        state = torch.tanh((1.0 - d).view(-1, 1, 1) * state + x)
        return state, state

    return example(cell, random(s.B, s.h, s.D), (random(T, s.B, s.h, s.D), done))


def covariance(s: Sizes) -> Example:
    """Products of matrices on both sides, and a transpose."""
    f = random(s.D, s.D)

    def cell(P: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        P = torch.tanh(0.3 * (f @ P @ f.T + P.transpose(-1, -2)) + x.unsqueeze(-1) * x.unsqueeze(-2))
        return P, P[:, 0] + P[:, :, -1]

    return example(cell, random(s.B, s.D, s.D), random(T, s.B, s.D), f)


def history(s: Sizes) -> Example:
    """A state [B, D, 3] that moves along."""
    taps = random(s.D, 3)

    def cell(past: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        past = torch.cat([past[:, :, 1:], x.unsqueeze(2)], 2)
        return past, (past * taps).sum(2)

    return example(cell, random(s.B, s.D, 3), random(T, s.B, s.D), taps)


MATRICES: tuple[Make, ...] = (
    retnet,
    retnet_by_einsum,
    gated_linear_attention,
    gated_linear_attention_projected,
    delta,
    gated_delta_by_einsum,
    mamba,
    mamba2_by_einsum,
    rwkv6,
    rwkv7,
    linear_attention,
    fast_weights,
    heads_by_einsum,
    heads_by_matmul,
    heads_by_bmm,
    dense_by_einsum,
    reset,
    covariance,
    history,
)
SIZES = (Sizes(2, 3, 4, 5), Sizes(3, 3, 3, 3), Sizes(1, 2, 3, 4), Sizes(2, 1, 1, 17), Sizes(2, 2, 33, 1))
