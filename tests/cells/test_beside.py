"""What a cell is given beside its carry: memories with the batch first or second, weights that each step has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.cells.support import B, H, T, fuses, h, random, x

S = 5
Attend = Callable[[Tensor, Tensor], Tensor]


def general(h: Tensor, memory: Tensor) -> Tensor:
    weights = torch.bmm(h.unsqueeze(1), memory.permute(1, 2, 0)).softmax(-1)
    return weights.bmm(memory.transpose(0, 1)).squeeze(1)


def dotted(h: Tensor, memory: Tensor) -> Tensor:
    weights = torch.sum(h * memory, dim=2).t().softmax(1)
    return (weights.unsqueeze(1) @ memory.transpose(0, 1)).squeeze(1)


def summed(h: Tensor, memory: Tensor) -> Tensor:
    weights = torch.einsum("bh,sbh->bs", h, memory).softmax(1)
    return torch.einsum("bs,sbh->bh", weights, memory)


@pytest.mark.parametrize("attend", [general, dotted, summed], ids=lambda attend: attend.__name__)
@pytest.mark.parametrize("steps", [S, B], ids=["longer", "as long as the batch"])
def test_a_memory_with_the_batch_second(attend: Attend, steps: int) -> None:
    torch.manual_seed(0)
    memory = random(steps, B, H)
    fuses(lambda h, x: ((n := torch.tanh(x + attend(h, memory))), n), h(), x(H), memory)


def test_memories_with_the_batch_first_and_second() -> None:
    keys, values, mask = random(S, B, H), random(B, S, H), torch.rand(S, B) > 0.3

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.einsum("bh,sbh->sb", h, keys).masked_fill(~mask, -9.0)
        n = torch.tanh(x + torch.einsum("sb,bsh->bh", scores.softmax(0), values))
        return n, n

    fuses(cell, h(), x(H), keys, values)


def test_pytorchs_attention_over_a_memory() -> None:
    attention, memory = nn.MultiheadAttention(H, 2).double(), random(S, B, H)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        n = torch.tanh(x + attention(h.unsqueeze(0), memory, memory)[0].squeeze(0))
        return n, n

    fuses(cell, h(), x(H), memory, *attention.parameters())


A = random(H, H)
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "from the right": lambda h, M: h @ M,
    "linear": F.linear,
    "from the left": lambda h, M: (M @ h.T).T,
    "vectors": lambda h, M: (M @ h.unsqueeze(-1)).squeeze(-1),
    "einsum": lambda h, M: torch.einsum("ij,bj->bi", M, h),
    "for each row": lambda h, M: torch.bmm(M.expand(len(h), H, H), h.unsqueeze(-1)).squeeze(-1),
    "of heads": lambda h, M: (h.view(-1, 2, H // 2) @ M[: H // 2, : H // 2]).flatten(1),
    "a quadratic form": lambda h, M: ((h @ M) * h).sum(-1, keepdim=True) * h,
    "solved": lambda h, M: torch.linalg.solve(M + 9 * torch.eye(H, dtype=M.dtype), h.unsqueeze(-1)).squeeze(-1),
}


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_a_weight_that_is_another_in_each_step(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    """As HiPPO's, which depends on the number of the step."""
    torch.manual_seed(0)

    def cell(h: Tensor, given: Any) -> tuple[Tensor, Tensor]:
        x, step = given
        h = torch.tanh(product(h, torch.eye(H, dtype=h.dtype) - A / step) + x)
        return h, h

    fuses(cell, h(), (x(H), torch.arange(1.0, T + 1).double()), A)
