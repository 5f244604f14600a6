"""Elements that several indices pick, in each row and in a table of all rows, read and written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import bppsa
from bppsa.runtime.recurrent.reference import loop
from tests.cells.support import B, H, fuses, h, random, squashed, x

TABLE, DEEP = random(H, H), random(H, H, 2)


def best(h: Tensor) -> Tensor:
    return h.argmax(1)


def pairs(h: Tensor, x: Tensor) -> Tensor:
    return h[:, :, None] * x[:, None, :]


def written(h: Tensor, values: Tensor, accumulate: bool = False) -> Tensor:
    y = h * 1
    return y.index_put_((torch.arange(B)[:, None], h.topk(2).indices), values, accumulate)


def masked(h: Tensor) -> Tensor:
    mask = torch.zeros_like(h)
    mask[torch.arange(B)[:, None], h.topk(2).indices] = 1
    return h * mask


PICKED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "several of each row": lambda h, x: h[torch.arange(B)[:, None], h.topk(2).indices].sum(1, keepdim=True) + x,
    "from the end": lambda h, x: h[torch.arange(B).view(-1, 1).expand(-1, 2), -1 - h.topk(2).indices].repeat(1, 3) + x,
    "the same of each row": lambda h, x: h[torch.arange(B)[:, None], torch.arange(H - 1, -1, -1)] + x,
    "of two dimensions": lambda h, x: pairs(h, x)[torch.arange(B), best(h), best(x)][:, None] + x,
    "of a table": lambda h, x: TABLE[best(h), best(x)][:, None] + x,
    "of a table, from the end": lambda h, x: TABLE[-1 - best(h), -1][:, None] + x,
    "of a table of several": lambda h, x: DEEP[best(h), best(x)].repeat(1, 3) + x,
    "written": lambda h, x: written(h, x[:, :2]) + x,
    "added": lambda h, x: written(h, x[:, :2], True) + x,
    "a mask of the best": lambda h, x: masked(h) + x,
}


@pytest.mark.parametrize("picked", PICKED.values(), ids=PICKED)
def test_elements_by_several_indices(picked: Callable[[Tensor, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    fuses(squashed(picked), h(), x(H), TABLE, DEEP)


def test_a_chain_of_tags() -> None:
    """As the score of a sequence in a conditional random field."""

    def cell(state: Any, x: Tensor) -> Any:
        score, last = state
        tag = x.argmax(1)
        score = score + TABLE[last, tag] + x[torch.arange(B), tag]
        return (score, tag), score

    fuses(cell, (random(B), torch.zeros(B, dtype=torch.int64)), x(H), TABLE)


@pytest.mark.parametrize(
    "picked",
    [
        lambda h: h[torch.tensor([1, 2, 0]), best(h)],
        lambda h: h[torch.arange(B).flip(0), best(h)],
        lambda h: h[torch.arange(B)[:, None] * 0, h.topk(2).indices].sum(1),
    ],
    ids=["exchanged", "reversed", "of the first"],
)
def test_elements_of_other_rows_are_pytorchs(picked: Callable[[Tensor], Tensor]) -> None:
    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(picked(h)[:, None] + x)
        return h, h

    assert "across the batch" in str(bppsa.explain(lambda xs: bppsa.scan(cell, h(), xs), x(H)))


def test_a_place_out_of_range_is_no_number() -> None:
    """Nor another element: a column too many is none of the next line. PyTorch raises an error."""

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = h + x + TABLE[best(h) * 0, best(h) + 1][:, None]
        return h, h

    last = torch.zeros(B, H, dtype=torch.float64)
    last[:, -1] = 9
    assert bppsa.scan(cell, last, x(H), strategy="sequential")[1].isnan().all()


@pytest.mark.parametrize("padding", [0, 2, -1])
def test_a_row_of_padding_has_no_gradient(padding: int) -> None:
    table = random(H, H)

    def cell(state: Any, x: Tensor) -> Any:
        h, token = state
        h = torch.tanh(h + functional.embedding(token, table, padding_idx=padding) + 3 * x)
        return (h, h.argmax(1)), h

    fuses(cell, (h(), torch.arange(B) % H), x(H), table)


@pytest.mark.parametrize("how", ["scale_grad_by_freq", "sparse"])
def test_embeddings_whose_gradients_are_no_sums_of_rows(how: str) -> None:
    table = random(H, H)

    def cell(state: Any, x: Tensor) -> Any:
        h, token = state
        h = torch.tanh(h + functional.embedding(token, table, **{how: True}) + x)
        return (h, h.argmax(1)), h

    def run(scan: Any) -> Tensor:
        _, ys = scan(cell, (torch.zeros(B, H, dtype=torch.float64), torch.arange(B) % H), xs)
        return torch.autograd.grad(ys.square().sum(), table)[0]

    xs = x(H).detach()
    ours, theirs = run(bppsa.scan), run(loop)
    assert ours.layout == theirs.layout
    torch.testing.assert_close(ours.to_dense(), theirs.to_dense())
