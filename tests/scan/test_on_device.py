"""A cell is recorded on the CPU: what it makes anew is made where the call is, here on the meta device."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from bppsa.frontend.cell.plans import find
from tests.scan.zoo import B, H, T, random


def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    places = torch.arange(H, device=x.device, dtype=x.dtype)
    h = torch.tanh(h + (x * places).sort(1).values)
    return h, h.sort(1).values + torch.linspace(0, 1, H, device=h.device, dtype=h.dtype)


def made_on(part: fx.GraphModule | None) -> set[torch.device]:
    assert part is not None
    return {torch.device(node.kwargs["device"]) for node in part.graph.nodes if "device" in node.kwargs}


def test_what_a_cell_makes_is_on_the_calls_device() -> None:
    carry, xs = random(B, H), random(T, B, H)
    found = find(cell, [carry], pytree.tree_structure(carry), [xs], pytree.tree_structure(xs))
    assert isinstance(found, tuple), found
    plan, meta = found[0], torch.device("meta")
    parts = plan.around(meta)
    assert any(map(made_on, parts))
    for part, own in zip(parts, (plan.hoisted, plan.tail), strict=True):
        assert made_on(part) <= {meta}
        assert meta not in made_on(own)
    assert plan.around(meta) is parts  # made once
    assert plan.around(torch.device("cpu")) == (plan.hoisted, plan.tail)
