"""One step of a state [B, h, D] in many spellings: a new state of the same shape as a function of it, of x alike, and
of parameters w [h, D, D] and m [D, D]."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from tests.scan.matrices import Make, Sizes
from tests.scan.zoo import Example, T, example, random

Step = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def heads_first(s: Tensor, x: Tensor, w: Tensor, m: Tensor) -> Tensor:
    s, x = s.transpose(0, 1), x.transpose(0, 1)
    return (s.sigmoid() * (s @ w) + x * s.mean(-1, keepdim=True)).transpose(0, 1)


def merged(s: Tensor, x: Tensor, w: Tensor, m: Tensor) -> Tensor:
    rows, heads, width = s.shape
    s, x = s.reshape(rows * heads, 1, width), x.reshape(rows * heads, width, 1)
    return torch.bmm(0.3 * s, (x + 1) * s).view(rows, heads, width)


def head_by_head(s: Tensor, x: Tensor, w: Tensor, m: Tensor) -> Tensor:
    return torch.stack([s[:, i] @ w[i] + x[:, i] for i in range(s.shape[1])], 1)


def head_by_head_in_front(s: Tensor, x: Tensor, w: Tensor, m: Tensor) -> Tensor:
    s = s.transpose(0, 1)
    return torch.cat([s[i] @ w[i] for i in range(len(w))], -1).unflatten(-1, (len(w), -1)) + x


def attended(s: Tensor, x: Tensor, w: Tensor, m: Tensor) -> Tensor:
    return torch.softmax(x @ s.transpose(1, 2) / math.sqrt(s.shape[-1]), -1) @ s


def by_scaled_dot_product(s: Tensor, x: Tensor, w: Tensor, m: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(x, s, s @ m)


def gates_in_front(s: Tensor, x: Tensor, w: Tensor, m: Tensor) -> Tensor:
    weights = torch.stack([w.sum(1), w.sum(2)]).unsqueeze(1)
    forget, update = torch.sigmoid(torch.stack([x, x * x]) + weights * s)
    return forget * s + update * x


STEPS: dict[str, Step] = {
    "gates in front": gates_in_front,
    "a weight for each gate": lambda s, x, w, m: (s[:, 0] @ torch.stack([m, m.t()])).sum(0).unsqueeze(1) + x,
    "heads first": heads_first,
    "merged": merged,
    "head by head": head_by_head,
    "head by head, in front": head_by_head_in_front,
    "attended": attended,
    "scaled dot product": by_scaled_dot_product,
    "ellipsis": lambda s, x, w, m: torch.einsum("...hi,hij->...hj", s, w) + x,
    "linear": lambda s, x, w, m: functional.linear(s, m) + x,
    "tensordot": lambda s, x, w, m: torch.tensordot(s, m, dims=1) + x,
    "matmul on the left": lambda s, x, w, m: (m @ s.transpose(1, 2)).transpose(1, 2) + x,
    "flipped": lambda s, x, w, m: s.flip(1) + x.flip((1, 2)),
    "rolled": lambda s, x, w, m: s.roll(1, 1) + x.roll((1, -1), (1, 2)),
    "padded": lambda s, x, w, m: (
        functional.pad(s, (1, 0, 0, 0))[..., :-1] + functional.pad(x, (0, 0, 0, 1), value=2.0)[:, 1:]
    ),
    "every other": lambda s, x, w, m: torch.cat([s[..., ::2], x[..., 1::2]], -1) * s[:, ::2].sum((1, 2), keepdim=True),
    "every other column": lambda s, x, w, m: torch.cat([s.flatten(1)[:, 1::2], x.flatten(1)[:, ::2]], 1).view_as(s),
    "group norm": lambda s, x, w, m: functional.group_norm(s.flatten(1) + x.flatten(1), s.shape[1]).view_as(s) + x,
    "rms norm": lambda s, x, w, m: functional.rms_norm(s, (s.shape[-1],)) + x,
    "normalised": lambda s, x, w, m: functional.normalize(s, dim=-1) + x,
    "largest": lambda s, x, w, m: s - s.max(1, keepdim=True)[0] + x + s.min(2).values.unsqueeze(2),
    "sums over all": lambda s, x, w, m: x - s.transpose(0, 1).mean((0, 2)).view(-1, 1, 1),
    "folded to heads": lambda s, x, w, m: s.flatten(1).unflatten(1, (s.shape[2], s.shape[1])).transpose(1, 2) * x,
    "pairs": lambda s, x, w, m: (s.unsqueeze(2) - x.unsqueeze(1)).abs().sum(2),
    "logsumexp of a stack": lambda s, x, w, m: torch.logsumexp(torch.stack([s, x, s + x], -1), -1),
    "one number": lambda s, x, w, m: s[:, :1].sum(2, keepdim=True)[:, :, :1] * x + s[:, :1, -1:] * x.amax((1, 2), True),
    "repeated": lambda s, x, w, m: s[:, :1].expand(-1, s.shape[1], -1) * x,
}


def spelled(name: str) -> Make:
    def make(sizes: Sizes) -> Example:
        w, m = random(sizes.h, sizes.D, sizes.D), random(sizes.D, sizes.D)

        def cell(s: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            s = torch.tanh(STEPS[name](s, x, w, m))
            return s, s

        return example(cell, random(sizes.B, sizes.h, sizes.D), random(T, sizes.B, sizes.h, sizes.D), w, m)

    return make
