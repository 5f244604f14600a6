"""Every option says something about what is asked for, or is an error that names it and the mend."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import bppsa
from bppsa.errors import ArgumentError, BppsaError, StrategyError
from bppsa.schedule import blelloch, ddp, gpipe

SCHEDULED = {
    "microbatches": 8,
    "stages": 8,
    "workers": 1,
    "loss_fn": nn.MSELoss(),
    "loss_weight": len,
    "example_inputs": torch.ones(2, 4),
    "data": "global",
    "seed": 0,
}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))


@pytest.mark.parametrize("name", SCHEDULED)
@pytest.mark.parametrize("others", [{}, {"fallback": "inductor"}, {"strategy": "blelloch"}])
def test_options_of_a_schedule_want_one(name: str, others: dict[str, Any]) -> None:
    """Also at their defaults."""
    with pytest.raises(StrategyError, match=rf"^{name}= says nothing .*give schedule= too.*or leave it out"):
        bppsa.compile(model(), **{name: SCHEDULED[name]}, **others)


@pytest.mark.parametrize(
    ("name", "value"),
    [("fallback", "eager"), ("strict", False), ("budget", 100), ("masks", {}), ("sparse", "masks")],
)
def test_options_of_one_worker_do_not_go_with_a_schedule(name: str, value: Any) -> None:
    with pytest.raises(StrategyError, match=rf"^{name}= says nothing with schedule=; .*schedule="):
        bppsa.compile(model(), schedule=gpipe(), **{name: value})


@pytest.mark.parametrize("name", ["strict", "budget"])
@pytest.mark.parametrize("others", [{}, {"strategy": "sequential"}, {"strategy": "blelloch", "fallback": "inductor"}])
def test_options_of_a_scan_want_one(name: str, others: dict[str, Any]) -> None:
    value = {"strict": False, "budget": 100}[name]
    with pytest.raises(StrategyError, match=rf"^{name}= says nothing with strategy='\w+'.*give a strategy that scans"):
        bppsa.compile(model(), **{name: value}, **others)
    if "fallback" not in others:
        with pytest.raises(StrategyError, match=f"^{name}= says nothing"):
            bppsa.explain(model(), torch.ones(2, 4), **{name: value}, **others)


@pytest.mark.parametrize(("name", "value"), [("masks", {}), ("sparse", "auto"), ("sparse", "masks")])
def test_masks_do_not_go_with_a_scan(name: str, value: Any) -> None:
    with pytest.raises(StrategyError, match=rf"^{name}= says nothing with strategy='blelloch'"):
        bppsa.compile(model(), strategy="blelloch", **{name: value})
    with pytest.raises(StrategyError, match=rf"^{name}= says nothing with strategy='blelloch'"):
        bppsa.explain(model(), torch.ones(2, 4), strategy="blelloch", **{name: value})


@pytest.mark.parametrize(("name", "value"), [("strict", True), ("budget", 1), ("masks", {}), ("sparse", "auto")])
def test_a_function_has_no_layers(name: str, value: Any) -> None:
    options = {name: value} | ({"strategy": "blelloch"} if name in ("strict", "budget") else {})
    with pytest.raises(ArgumentError, match=rf"^{name}= .*a function has none; leave it out"):
        bppsa.explain(lambda x: x, torch.ones(2), **options)


WRONG_TYPES = {
    "strict": ["yes", 1],
    "budget": [2.5, True, "1G"],
    "masks": [[], "features.0.weight"],
    "schedule": ["gpipe", 5, 0],
    "microbatches": [2.5, True, "2"],
    "stages": [2.5, True, "2", [], [1, 2], nn.Linear(4, 4)],
    "workers": ["2", True, 1.0],
    "loss_fn": ["ce", 1],
    "loss_weight": [2.0],
    "seed": ["x", 1.5, True],
}
WRONG_VALUES = {
    "strategy": [None, 1, "", "fastest"],
    "forward": [None, 1, "fast"],
    "fallback": ["nothing", 1, True],
    "budget": [-1],
    "sparse": ["nonsense", True],
    "microbatches": [0, -1],
    "stages": [0, -3],
    "workers": [0, -1],
    "data": ["nonsense", 1],
}


def others_for(name: str) -> dict[str, Any]:
    """With which the option says something."""
    scans = {"strategy": "blelloch"} if name in ("strict", "budget") else {}
    return {"schedule": gpipe(), "loss_fn": nn.MSELoss()} if name in SCHEDULED else scans


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG_TYPES for value in WRONG_TYPES[name]])
def test_a_value_of_another_type_is_named(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"^{name}= takes .*, not ") as caught:
        bppsa.compile(model(), **{**others_for(name), name: value})
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG_VALUES for value in WRONG_VALUES[name]])
def test_a_value_that_it_cannot_have_is_named(name: str, value: Any) -> None:
    with pytest.raises(StrategyError, match=rf"{name}[= ].*(known: |at least)") as caught:
        bppsa.compile(model(), **{**others_for(name), name: value})
    assert isinstance(caught.value, ValueError)


def test_a_loss_weight_wants_a_mean() -> None:
    for loss in ({}, {"loss_fn": nn.MSELoss(reduction="sum")}):
        with pytest.raises(StrategyError, match=r"^loss_weight= says nothing here: .*leave it out"):
            bppsa.compile(model(), schedule=gpipe(), loss_weight=len, **loss)


def test_chunks_of_time_are_the_stages() -> None:
    with pytest.raises(StrategyError, match=r"^stages= says nothing with blelloch.*leave it out"):
        bppsa.compile(nn.GRU(4, 4), schedule=blelloch(2), stages=2)


def test_rows_of_ranks_want_ranks() -> None:
    with pytest.raises(StrategyError, match=r"data='local' .* no process group; .*init_process_group"):
        bppsa.compile(model(), schedule=ddp(), workers=2, data="local")
    with pytest.raises(StrategyError, match=r"data='local' .*blelloch.*leave it out"):
        bppsa.compile(nn.GRU(4, 4), schedule=blelloch(2), data="local")


def test_none_is_the_default() -> None:
    names = [*SCHEDULED, "schedule", "fallback", "strict", "budget", "masks", "sparse"]
    x = torch.ones(2, 4)
    plain = model()
    assert torch.equal(bppsa.compile(plain, **dict.fromkeys(names))(x), plain(x))
    stepped = bppsa.compile(model(), schedule=gpipe(), **dict.fromkeys(SCHEDULED), strategy="auto", forward="auto")
    assert isinstance(stepped, nn.Module)


@pytest.mark.parametrize(
    "options", [{"schedule": "gpipe"}, {"masks": {}}, {"strict": True}, {"strategy": None}, {"fallback": None}]
)
def test_a_backend_has_its_own_options(options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    with pytest.raises(BppsaError, match=f"{next(iter(options))}|None"):
        torch.compile(model(), backend="bppsa", options=options)(torch.ones(2, 4))
    torch._dynamo.reset()
