"""What a call comes to by each strategy."""

from __future__ import annotations

import pytest

from bppsa.plan.forward import NEWTON
from bppsa.plan.strategy import Strategy, divide
from bppsa.plan.work import PYTORCH, Size, backward, forward, newton, phases
from tests.plan.records import counts

SIZE = Size(steps=100, rows=4)
SCANS = [Strategy("chunked"), Strategy("chunked", length=10), Strategy("blelloch"), Strategy("hybrid", up_levels=2)]


def test_a_sweep_is_all_steps_one_after_the_other() -> None:
    (_, products), (name, work) = forward(Strategy("sequential"), counts(), SIZE, training=True)
    assert name == "forward"
    assert (work.launches, work.steps, work.width) == (1, 100, 4)
    assert (work.flops, work.bytes) == (400 * 110, 400 * 12 + 400)
    assert (products.launches, products.steps, products.flops) == (1, 0, 400 * 6)
    assert [name for name, _ in backward(Strategy("sequential"), counts(), SIZE)] == ["backward", "products"]
    assert [name for name, _ in phases(Strategy("chunked"), counts(), SIZE, training=False)] == [
        "products",
        "inference",
    ]


@pytest.mark.parametrize("strategy", SCANS, ids=str)
def test_a_scan_is_reduce_scan_and_sweep(strategy: Strategy) -> None:
    found = dict(backward(strategy, counts(), SIZE))
    assert list(found) == ["reduce", "scan", "backward", "products"]
    division = divide(strategy, SIZE.steps)
    assert found["reduce"].steps == found["backward"].steps == division.length
    assert found["backward"].width == 4 * division.count
    assert found["reduce"].width == 5 * found["backward"].width, "a basis of three, what enters, and NaN"
    assert found["reduce"].flops == 5 * found["backward"].flops
    assert found["scan"].launches == len(division.scan.up) + 1 + len(division.scan.down)


def test_few_steps_are_one_chunk() -> None:
    short = Size(4, 4)
    assert backward(Strategy("chunked"), counts(), short) == backward(Strategy("sequential"), counts(), short)


def test_diagonal_pairs_cost_what_their_blocks_do() -> None:
    dense = dict(backward(Strategy("chunked"), counts(width=6), SIZE))["scan"]
    diagonal = dict(backward(Strategy("chunked"), counts(width=1, blocks=6), SIZE))["scan"]
    assert dense.flops == 6 * diagonal.flops
    assert dense.steps == diagonal.steps


def test_a_program_takes_a_tile_of_rows() -> None:
    (_, work), _ = backward(Strategy("sequential"), counts(tile=16, warps=2), Size(100, 33))
    assert work.width == 3 * 2


def test_pytorch_is_counted_at_rates_of_its_own() -> None:
    ours = dict(phases(Strategy("sequential"), counts(), SIZE, training=True))
    (name, first), (other, _) = phases(PYTORCH, counts(), SIZE, training=True)
    assert (name, other) == ("GRU forward", "GRU backward")
    assert first.launches == 1
    assert first.flops == 400 * (110 + 6)
    assert first.steps == ours["forward"].steps
    ((name, looped),) = phases(PYTORCH, counts("loop"), SIZE, training=False)
    assert name == "loop inference"
    assert looped.launches == 5 * 100, "every op of every step"


def test_newton_sweeps_once_more_than_it_corrects() -> None:
    shots = divide(Strategy("chunked"), 100)
    none, thrice = (dict(newton(counts(iterations=k), SIZE, shots)) for k in (0, 3))
    assert list(thrice) == ["products", "forward", "reduce", "correct"]
    assert thrice["forward"] == none["forward"].times(4)
    assert thrice["products"] == none["products"].times(4)
    assert none["forward"].steps == shots.length
    assert none["correct"].steps == 0
    assert thrice["correct"].steps == 3 * shots.count
    assert thrice["reduce"] == dict(backward(Strategy("chunked"), counts(), SIZE))["reduce"].times(3)
    ours = phases(Strategy("chunked"), counts(), SIZE, True, NEWTON)
    assert ours == newton(counts(), SIZE, shots) + backward(Strategy("chunked"), counts(), SIZE)
