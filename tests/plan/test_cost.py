"""From work to microseconds."""

from __future__ import annotations

import json

import pytest

from bppsa.plan.cost import Machine, Rates, Work
from bppsa.plan.machines import SHIPPED
from tests.plan.records import machine

WORK = Work(launches=2, steps=5, flops=3e6, bytes=4e3, width=4)


def test_a_call_is_the_sum_of_its_parts() -> None:
    rates = Rates(launch=10, step=1, flops=100, bytes=1000)
    made = machine(forward=rates)
    assert made.us([("forward", WORK)]) == 2 * 10 + 5 * 1 + 3 * 100 + 4 * 1000
    assert made.us([("forward", WORK)] * 2) == 2 * made.us([("forward", WORK)])
    assert made.us([]) == 0


@pytest.mark.parametrize(("width", "rounds", "idle"), [(8, 1, 1), (32, 4, 1), (2, 1, 4)])
def test_pieces_share_slots(width: int, rounds: int, idle: int) -> None:
    """More than there are wait for another round; fewer leave processors idle, which flops feel and bytes do not."""
    work = Work(2, 5, 3e6, 4e3, width)
    parts = machine(slots=8).parts("forward", work)
    assert parts == {"launch": 20, "step": 5 * rounds, "flops": 3 * idle, "bytes": 4}


def test_what_fills_a_processor_neither_waits_nor_idles() -> None:
    work = Work(2, 5, 3e6, 4e3, None)
    assert machine(slots=8).parts("forward", work) == machine().parts("forward", work)


@pytest.mark.parametrize("device", SHIPPED)
def test_a_record_survives_json(device: str) -> None:
    shipped = SHIPPED[device]
    assert Machine.of_json(json.loads(json.dumps(shipped.as_json()))) == shipped
    with pytest.raises(KeyError):
        Machine.of_json({"name": "half a record"})


def test_a_record_says_how_it_was_found() -> None:
    for shipped in SHIPPED.values():
        assert shipped.source.startswith("fitted by benchmarks/fit.py")
        assert str(shipped) == f"{shipped.name}: {shipped.source}"


def test_rates_of_a_record_that_knows_more_are_read() -> None:
    kept = SHIPPED["cuda"].as_json()
    kept["rates"] = {name: {**rates, "host": 7.0} for name, rates in kept["rates"].items()}
    assert Machine.of_json(kept) == SHIPPED["cuda"]
