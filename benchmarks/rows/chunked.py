"""The chunked parallel forms of recurrences with matrix states, in plain torch, from the formulas of their papers.

Within a chunk of C steps all is products of matrices; a Python loop over the chunks hands on the state. q, k are
[T, B, h, D], v [T, B, h, N], S [B, h, D, N]; what comes out is [T, B, h, N]. T need not be a multiple of C: what is
added at the end changes nothing before it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def cut(x: Tensor, length: int) -> Tensor:
    """[T, B, h, n] -> [T / C, B, h, C, n], zeros at the end."""
    x = F.pad(x, (0, 0) * (x.dim() - 1) + (0, -x.shape[0] % length))
    return x.unflatten(0, (-1, length)).movedim(1, 3)


def joined(chunks: list[Tensor], steps: int) -> Tensor:
    return torch.stack(chunks).movedim(3, 1).flatten(0, 1)[:steps]


def causal(length: int, like: Tensor, *, diagonal: int = 0) -> Tensor:
    return torch.ones(length, length, dtype=like.dtype).tril(diagonal)


def gated(S: Tensor, q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, *, length: int) -> Tensor:
    """Gated linear attention (Yang et al. 2023, arXiv 2312.06635, section 3.3): b_t, the product of a chunk's decays up
    to t, scales q by b and k by 1 / b. log_a: [T, B, h, D]."""
    steps, mask = q.shape[0], causal(length, q)
    q, k, v, log_a = (cut(x, length) for x in (q, k, v, log_a))
    log_b = log_a.cumsum(3)
    whole = log_b[..., -1:, :]
    q, k, k_to_end = q * log_b.exp(), k * (-log_b).exp(), k * (whole - log_b).exp()
    within = (q @ k.mT * mask) @ v
    added, kept = k_to_end.mT @ v, whole.mT.exp()
    found = []
    for c in range(q.shape[0]):
        found.append(within[c] + q[c] @ S)
        S = kept[c] * S + added[c]
    return joined(found, steps)


def decayed(S: Tensor, q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, *, length: int) -> Tensor:
    """Mamba-2's state space duality (Dao and Gu 2024, arXiv 2405.21060, section 6): one decay a head, so that the
    products of decays between two steps are a matrix [C, C]. log_a: [T, B, h]."""
    steps, mask = q.shape[0], causal(length, q)
    q, k, v = (cut(x, length) for x in (q, k, v))
    log_b = cut(log_a.unsqueeze(-1), length).cumsum(3)
    between = (log_b - log_b.mT).masked_fill(mask == 0, -torch.inf).exp()
    whole = log_b[..., -1:, :]
    within = (q @ k.mT * between) @ v
    q, added, kept = q * log_b.exp(), (k * (whole - log_b).exp()).mT @ v, whole.exp()
    found = []
    for c in range(q.shape[0]):
        found.append(within[c] + q[c] @ S)
        S = kept[c] * S + added[c]
    return joined(found, steps)


def delta(S: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, length: int) -> Tensor:
    """DeltaNet (Yang et al. 2024, arXiv 2406.06484, section 3.2): the chunk's reflections I - beta k k^T as one
    I - K^T W, by the inverse of a triangle of C steps. beta: [T, B, h]."""
    steps, mask = q.shape[0], causal(length, q)
    k = F.normalize(k, dim=-1)
    q, k, v, beta = (cut(x, length) for x in (q, k, v, beta.unsqueeze(-1)))
    triangle = (beta * k) @ k.mT * causal(length, q, diagonal=-1) + torch.eye(length, dtype=q.dtype)
    solved = torch.linalg.solve_triangular(triangle, beta * torch.cat([k, v], -1), upper=False, unitriangular=True)
    w, u = solved.split([k.shape[-1], v.shape[-1]], -1)
    scores = q @ k.mT * mask
    found = []
    for c in range(q.shape[0]):
        error = u[c] - w[c] @ S
        found.append(q[c] @ S + scores[c] @ error)
        S = S + k[c].mT @ error
    return joined(found, steps)
