"""Reductions over a row of the carry, and ops that move its columns: at least two spellings of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.breadth import alternate
from tests.cells.support import H, T, fuses, h, random, squashed, x

W, V, U, TENSOR = random(H, H), random(H), random(H, H), random(H, H, 2)
GROUPS, NORM, RMS = nn.GroupNorm(2, H).double(), nn.LayerNorm(H).double(), nn.RMSNorm(H).double()
BIG = 300.0


def rotated(out: Tensor, h: Tensor) -> Tensor:
    """As a rotary embedding does it."""
    out[:, 0::2] = h[:, 1::2] * V[::2]
    out[:, 1::2] = -h[:, 0::2]
    out[:, 1:5:3] += h[:, :2]
    return out


ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda h: torch.softmax(h, 1),
    "softmax, function": lambda h: functional.softmax(h, dim=-1),
    "softmax, written out": lambda h: (e := torch.exp(h - h.amax(1, keepdim=True))) / e.sum(1, keepdim=True),
    "softmax, of large numbers": lambda h: torch.softmax(BIG * h, 1),
    "attention with heads, causal": lambda h: functional.scaled_dot_product_attention(
        *[h.view(len(h), 1, 2, H // 2)] * 3, is_causal=True
    ).reshape(len(h), H),
    "attention of which a row sees nothing": lambda h: (
        h
        + functional.scaled_dot_product_attention(
            *[h.view(-1, 1, 3, 2)] * 3, attn_mask=torch.eye(3).roll(1, 0).bool() & (torch.arange(3) > 0)
        ).reshape(-1, H)
    ),
    "attention over a learned memory": lambda h: torch.softmax(h @ W, 1) @ U,
    "log_softmax": lambda h: functional.log_softmax(h, 1),
    "log_softmax, method": lambda h: h.log_softmax(-1),
    "softmin": lambda h: functional.softmin(h, 1),
    "logsumexp": lambda h: h - torch.logsumexp(h, 1, keepdim=True),
    "logsumexp, of large numbers": lambda h: h - torch.logsumexp(BIG * h, -1).unsqueeze(1) / BIG,
    "amax": lambda h: h - h.amax(1, keepdim=True),
    "amax without the dimension": lambda h: h - torch.amax(h, -1)[:, None],
    "amin": lambda h: h - h.amin(dim=1, keepdim=True),
    "max": lambda h: h / (2 + h.max(-1, keepdim=True).values),
    "max, both results": lambda h: h * (h.max(1)[1][:, None] + 1),
    "min": lambda h: h - h.min(1)[0].unsqueeze(1),
    "argmax as a mask": lambda h: torch.where(torch.arange(H) == h.argmax(1, keepdim=True), h, 0.5 * h),
    "argmax as a mask, by amax": lambda h: h * (h == h.amax(1, keepdim=True)),
    "aminmax": lambda h: h - sum(torch.aminmax(h, dim=1, keepdim=True)),
    "mean": lambda h: h - h.mean(1, keepdim=True),
    "var": lambda h: h / torch.sqrt(1 + h.var(1, keepdim=True)),
    "std": lambda h: h / (1 + h.std(1, keepdim=True)),
    "std, not corrected": lambda h: h / (1 + h.std(1, unbiased=False)[:, None]),
    "std_mean": lambda h: h / (1 + sum(torch.std_mean(h, 1, keepdim=True))),
    "var_mean": lambda h: h / (1 + torch.var_mean(h, 1, keepdim=True)[0]),
    "norm": lambda h: h / (1 + h.norm(dim=1, keepdim=True)),
    "norm, linalg": lambda h: h / (1 + torch.linalg.vector_norm(h, dim=1)[:, None]),
    "norm of order 1": lambda h: h / (1 + h.norm(1, dim=1, keepdim=True)),
    "largest norm": lambda h: h / (1 + torch.linalg.vector_norm(h, torch.inf, dim=1, keepdim=True)),
    **{f"norm of order {p}": lambda h, p=p: h / (1 + h.norm(p, dim=1, keepdim=True)) for p in (0, 0.5, 1.5, 3)},
    "distance of two": lambda h: h - functional.pairwise_distance(h, V.expand(len(h), H), keepdim=True),
    "distances": lambda h: h + torch.cdist(h.view(-1, 3, 2), h.view(-1, 3, 2)).sum(2).repeat(1, 2),
    "distances of order 1": lambda h: h + torch.cdist(h.view(-1, 3, 2), U[:2, :2], p=1).flatten(1),
    "sum of numbers": lambda h: h - h.nansum(1, keepdim=True),
    "cross product": lambda h: h + torch.cross(h[:, :3], h[:, 3:], dim=1).repeat(1, 2),
    "cross product, with a parameter": lambda h: h + torch.linalg.cross(h.view(-1, 2, 3), U[:1, None, :3]).flatten(1),
    "bilinear": lambda h: functional.bilinear(h, h[:, :2], TENSOR, V),
    "turned": lambda h: torch.rot90(h.view(-1, 2, 3), 1, [1, 2]).flatten(1),
    "normalize": lambda h: functional.normalize(h, dim=1),
    "cumsum": lambda h: h.cumsum(1),
    "cumsum, function": lambda h: torch.cumsum(h, -1),
    "cumprod": lambda h: torch.cumprod(1 + 0.1 * h, 1),
    "cumax gate": lambda h: torch.cumsum(torch.softmax(h, 1), 1) * h,
    "logcumsumexp": lambda h: torch.logcumsumexp(h, 1),
    "prod": lambda h: h * (1 + h).prod(1, keepdim=True),
    "prod without the dimension": lambda h: h + torch.prod(h, 1)[:, None],
    "layer norm": NORM,
    "group norm": GROUPS,
    "group norm, function": lambda h: functional.group_norm(h, 3),
    "instance norm": lambda h: functional.instance_norm(h.view(-1, 2, 3), weight=V[:2], bias=V[2:4]).flatten(1),
    "channel shuffle": lambda h: functional.channel_shuffle(h.view(-1, H, 1), 3).flatten(1),
    "pixel shuffle": lambda h: functional.pixel_shuffle(h.repeat(1, 2).view(-1, 4, 1, 3), 2).flatten(1)[:, ::2],
    "pixel unshuffle": lambda h: functional.pixel_unshuffle(h.repeat(1, 2).view(-1, 1, 2, 6), 2).flatten(1)[:, ::2],
    "infinities": lambda h: torch.where(torch.isposinf(h / 0) | torch.isneginf(h), h, -h),
    "rms norm": RMS,
    "rms norm, written out": lambda h: h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * V,
    "top k": lambda h: h * (h >= h.topk(3, 1).values[:, -1:]),
    "top k, sum": lambda h: h - h.topk(2).values.sum(1, keepdim=True),
    "sort": lambda h: h.sort(1).values,
    "sort, descending": lambda h: torch.sort(h, descending=True)[0],
    "ranks": lambda h: h * h.argsort(1).argsort(1),
    "whole numbers: sort, descending": lambda h: h + (2 * h.argsort(1) - 5).sort(1, descending=True)[0],
    "whole numbers: sort, equal ones": lambda h: h + (2 * h).round().clamp(-1, 1).int().sort(1)[1],
    "truth values: sort": lambda h: h + (h > 0).sort(1)[0],
    "truth values: stable sort": lambda h: h + torch.sort(h > 0, dim=1, descending=True, stable=True)[1],
    "median": lambda h: h - h.median(1, keepdim=True)[0],
    "k-th value": lambda h: h - h.kthvalue(5).values[:, None],
    "cummax": lambda h: h.cummax(1).values - torch.cummax(h, -1)[1].to(h.dtype) / 9,
    "cummin": lambda h: torch.cummin(h, 1)[0],
    "any": lambda h: torch.where((h > 0.6).any(1, keepdim=True), -h, h),
    "all": lambda h: torch.where(torch.all(h > -0.5, -1)[:, None], -h, h),
    "heads: cumsum": lambda h: h.view(-1, 2, 3).cumsum(-1).flatten(1),
    "heads: top k": lambda h: h * (h.view(-1, 2, 3) >= h.view(-1, 2, 3).topk(2).values[..., -1:]).flatten(1),
    "heads: sort": lambda h: h.view(-1, 3, 2).sort(1).values.reshape(-1, H),
    "heads: prod": lambda h: h + h.view(-1, 2, 3).prod(2).repeat(1, 3),
    "heads: argmax": lambda h: h + h.view(-1, 2, 3).argmax(-1).repeat(1, 3).to(h.dtype) / 9,
    "heads: norm": lambda h: (h.view(-1, 2, 3) / (1 + h.view(-1, 2, 3).norm(3, dim=-1, keepdim=True))).flatten(1),
    "heads: repeat": lambda h: h.view(-1, 2, 3)[:, :1].repeat(1, 2, 1).flatten(1),
    "roll": lambda h: torch.roll(h, 1, 1),
    "roll, backwards": lambda h: h.roll(-2, dims=-1),
    "flip": lambda h: h.flip(1),
    "fliplr": torch.fliplr,
    "circular pad, by keywords": lambda h: functional.pad(input=h[:, None], pad=(1, 1), mode="circular")[:, 0, :H],
    "similarity, by keywords": lambda h: h * torch.cosine_similarity(x1=h, x2=V.expand(len(h), H), dim=-1)[:, None],
    "classes, by keywords": lambda h: h + functional.one_hot(input=h.argmax(1), num_classes=H).to(h.dtype),
    "bilinear, by keywords": lambda h: functional.bilinear(input1=h, input2=h[:, :2], weight=TENSOR, bias=V),
    "pad": lambda h: functional.pad(h, (1, 0))[:, :-1],
    "windows": lambda h: functional.pad(h, (1, 1)).unfold(1, 3, 1).mean(-1),
    "windows, apart": lambda h: h.view(-1, 2, 3).unfold(2, 2, 1).flatten(1)[:, :H],
    "mean pool, its sizes in tuples of one": lambda h: functional.avg_pool2d(
        h.view(-1, 1, 2, 3), (3,), (1,), (1,)
    ).flatten(1),
    "mean pool": lambda h: functional.avg_pool1d(h[:, None], 2, 1, 1)[:, 0, :H],
    "max pool": lambda h: functional.max_pool1d(h.view(-1, 2, 3), 2, 1).flatten(1).repeat(1, 2)[:, :H],
    "max pool, and where": lambda h: sum(functional.max_pool1d(h[:, None], 3, 1, 1, return_indices=True))[:, 0] / 9,
    "max pool of a plane": lambda h: (
        sum(functional.max_pool2d(h.view(-1, 1, 2, 3), 2, 1, 1, 1, False, True)).flatten(1)[:, :H] / 9
    ),
    "pad, reflecting": lambda h: functional.pad(h[:, None], (2, 1), mode="reflect")[:, 0, 1:-2],
    "pad, replicating": lambda h: functional.pad(h.view(-1, 1, 2, 3), (1, 0, 0, 1), mode="replicate").flatten(1)[:, :H],
    "pad, circular": lambda h: functional.pad(h[:, None], (1, 0), mode="circular")[:, 0, 1:],
    "pad, cutting": lambda h: functional.pad(h[:, :4], (3, -1)),
    "stack": lambda h: torch.stack([h[:, 0], h[:, 2], h[:, 1]], 1).repeat(1, 2),
    "stack, last": lambda h: torch.cat([torch.stack((h[:, 1], h[:, 0]), -1), h[:, 2:]], 1),
    "every other": lambda h: torch.cat([h[:, ::2], h[:, 1::2]], 1),
    "shift by slices": lambda h: torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], 1),
    "chunk": lambda h: torch.cat(h.chunk(3, 1)[::-1], 1),
    "split": lambda h: torch.cat(h.split([2, 4], 1)[::-1], 1),
    "unbind": lambda h: torch.stack(h.unbind(1)[::-1], 1),
    "tensor_split": lambda h: torch.cat(torch.tensor_split(h, 2, 1)[::-1], 1),
    "repeat": lambda h: h[:, :3].repeat(1, 2),
    "glu": lambda h: functional.glu(torch.cat([h, h], 1), 1),
    "maxout": lambda h: torch.cat([torch.maximum(h[:, :3], h[:, 3:])] * 2, 1),
    "heads of another size": lambda h: h.view(-1, 2, 3).transpose(1, 2).reshape(-1, 2, 3).flatten(1),
    "pairs of turned heads": lambda h: (h.view(-1, 2, 3).mT * 2).reshape(-1, 2, 3).softmax(1).reshape(-1, H),
    "matrix by vector": lambda h: h + torch.addmv(h[:, 0], h, V, beta=0.5, alpha=2)[:, None],
    "outer product": lambda h: torch.addr(h, h[:, 0], V, alpha=0.5),
    "how many": lambda h: h * torch.count_nonzero(h.relu(), 1)[:, None] / H,
    "rows of a table": lambda h: h + torch.index_select(W, 0, h.argmin(-1)),
    "quantile": lambda h: h - h.quantile(0.3, dim=1, keepdim=True) + torch.quantile(h, 1.0, -1)[:, None],
    "turned in place": lambda h: h * h.sum(1, keepdim=True).squeeze_(1).unsqueeze_(-1),
    "alternatives on top of each other": lambda h: (
        h + torch.stack([h[:, 0], torch.full((len(h),), 0.3, dtype=h.dtype), h[:, 1]], 0).logsumexp(0)[:, None]
    ),
    "nothing beside": lambda h: torch.cat([h[:, :2], h[:, 2:2], h[:, 2:]], 1),
    "written in turns": lambda h: rotated(torch.empty_like(h), h),
    "written in turns, into zeros": lambda h: rotated(torch.zeros_like(h), h),
    "written in turns, into memory of its own": lambda h: rotated(torch.empty(h.shape, dtype=h.dtype), h),
    "every third written twice": lambda h: rotated(rotated(h.clone(), h), h * V),
    "gumbel softmax, hard": lambda h: (s := h.softmax(1)) + ((s == s.amax(1, keepdim=True)).double() - s).detach(),
}


@pytest.mark.parametrize("name", alternate(ROWS))
def test_of_the_carry(name: str) -> None:
    torch.manual_seed(0)
    f = ROWS[name]
    parameters = [*GROUPS.parameters(), *NORM.parameters(), *RMS.parameters()]
    fuses(squashed(lambda h, x: f(torch.tanh(h @ W + x))), h(), x(H), W, V, U, TENSOR, *parameters)


@pytest.mark.parametrize("rows", [1, 3])
def test_numbers_of_each_row_on_top_of_each_other(rows: int) -> None:
    """Of a batch of one row any dimension of size one may be the batch."""

    def cell(state: Any, x: Tensor) -> Any:
        a, b = state
        both = torch.stack([a + x, b * x])
        a, b = torch.tanh(both.logsumexp(0)), torch.stack([a, both.sum(0)]).T.softmax(1)[:, 1]
        return (a, b), (both.T, both.amax(0), *both.max(0))

    fuses(cell, (random(rows), random(rows)), random(T, rows))


@pytest.mark.parametrize("order", [0, 0.5, 1, 1.5, 2, 3, torch.inf])
def test_norms_of_zeros_have_the_gradients_of_pytorch(order: float) -> None:
    fuses(
        squashed(lambda h, x: h / (1 + h.norm(order, dim=1, keepdim=True)) + x),
        torch.zeros_like(h()).requires_grad_(),
        x(H),
    )
