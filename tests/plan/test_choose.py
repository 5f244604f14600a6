"""The least predicted, where it is sure enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bppsa import strategies
from bppsa.plan.choose import PlannedCall, choose
from bppsa.plan.cost import Machine, Rates
from bppsa.plan.forward import RESTING, Forward
from bppsa.plan.strategy import AUTO, Strategy
from bppsa.plan.work import Size
from tests.plan.records import counts, machine

SLOW, FAST = Rates(1e5, 1e3, 1e3, 1e3), Rates(1, 0.001, 0.001, 0.001)
SLOW_PYTORCH = {"GRU_forward": SLOW, "GRU_backward": SLOW, "GRU_inference": SLOW}
AHEAD = Forward("auto")
FAST_SCAN = {"reduce": FAST, "scan": FAST}


def call(of: Machine, steps: int = 1000, *, training: bool = True, peer: str = "GRU", layers: int = 1) -> PlannedCall:
    return PlannedCall([counts(peer)] * layers, Size(steps, 4), training, of)


@pytest.mark.parametrize("training", [True, False])
def test_auto_takes_the_faster_one(training: bool) -> None:
    ours = choose(AUTO, call(machine(**SLOW_PYTORCH), training=training), {"T": 1000})
    assert ours.strategy == "sequential"
    assert ours.numbers["predicted ms"] < ours.numbers["PyTorch's"]  # type: ignore[operator]
    assert ours.numbers["T"] == 1000
    theirs = choose(AUTO, call(machine(forward=SLOW, inference=SLOW), training=training), {})
    assert theirs.strategy == "pytorch"


def test_a_gain_has_to_be_sure() -> None:
    twice = {name: Rates(20, 2, 2, 2) for name in ("GRU_forward", "GRU_backward")}
    assert choose(AUTO, call(machine(margin=1.3, **twice)), {}).strategy == "sequential"
    left = choose(AUTO, call(machine(margin=3.0, **twice)), {})
    assert (left.strategy, "too little to be sure of" in left.reason) == ("pytorch", True)
    assert choose(AUTO, call(machine(margin=1.3, **twice), steps=5), {}).strategy == "pytorch"
    slow_to_start = replace(machine(margin=1.3, **twice), short=1000)
    taken = [choose(AUTO, call(slow_to_start, steps), {}).strategy for steps in (1000, 10_000)]
    assert taken == ["pytorch", "sequential"]


@pytest.mark.parametrize("steps", [1, 2])
def test_few_steps_have_to_gain_more(steps: int) -> None:
    twice = machine(GRU_forward=Rates(20, 2, 2, 2), GRU_backward=Rates(20, 2, 2, 2))
    assert choose(AUTO, call(twice, 1000), {}).strategy == "sequential"
    assert choose(AUTO, call(twice, steps), {}).strategy == "pytorch"
    assert choose(AUTO, call(machine(**SLOW_PYTORCH), steps), {}).strategy == "sequential"
    on_gpu = replace(machine("cuda", 1000, **SLOW_PYTORCH), short=1000)
    assert choose(AUTO, call(on_gpu, steps), {}).strategy == "pytorch"  # its host is what takes time


def test_scans_are_for_devices_whose_kernels_combine_pairs() -> None:
    rates = SLOW_PYTORCH | FAST_SCAN
    assert choose(AUTO, call(machine("cuda", 1000, **rates)), {}).strategy == "chunked"
    assert choose(AUTO, call(machine("cpu", **rates)), {}).strategy == "sequential"
    assert choose(AUTO, call(machine("cuda", 1000, **rates), training=False), {}).strategy == "sequential"
    slow_scan = SLOW_PYTORCH | {"reduce": SLOW}
    assert choose(AUTO, call(machine("cuda", 1000, **slow_scan)), {}).strategy == "sequential"


def test_a_forward_of_pytorchs_beside_a_backward_of_ours() -> None:
    rates = FAST_SCAN | {"GRU_backward": SLOW, "forward": SLOW}
    long = replace(call(machine("cuda", 1000, **rates)), library=True)
    found = choose(AUTO, long, {}, ahead=AHEAD)
    assert (found.strategy, found.forward) == ("chunked", "pytorch")
    assert "forward pytorch: PyTorch's own predicted" in found.reason
    for other in (replace(long, library=False), replace(long, training=False)):
        assert choose(AUTO, other, {}, ahead=AHEAD).forward != "pytorch"
    asked = choose(Strategy("chunked"), replace(long, library=False), {}, ahead=Forward("pytorch"))
    assert (asked.forward, asked.reason) == ("pytorch", "as asked; forward pytorch: as asked")


def test_what_a_program_cannot_hold_is_pytorchs_unless_asked_for() -> None:
    wide = replace(call(machine("cuda", 1000, **SLOW_PYTORCH)), layers=[replace(counts(), fits=False)])
    assert choose(AUTO, wide, {}).strategy == "pytorch"
    assert choose(Strategy("chunked"), wide, {}).strategy == "chunked"
    assert choose(AUTO, wide, {}, ahead=Forward("newton")).forward == "newton"


def test_while_newton_rests_only_what_is_exact_is_tried() -> None:
    rates = {"reduce": FAST, "correct": FAST}
    iterated = call(machine("cuda", 1000, **rates), steps=10_000)
    at_once = replace(iterated, layers=[replace(counts(), iterations=1)])
    for of, resting in ((iterated, "sequential"), (at_once, "newton")):
        assert choose(Strategy("chunked"), of, {}, ahead=AHEAD).forward == "newton"
        assert choose(Strategy("chunked"), of, {}, ahead=RESTING).forward == resting


def test_a_loop_in_python_has_to_be_the_sure_one() -> None:
    assert choose(AUTO, call(machine(), 1000, peer="loop"), {}).strategy == "sequential"
    short = machine(loop_forward=FAST, loop_backward=FAST)
    assert choose(AUTO, call(short, 1, peer="loop"), {}).strategy == "pytorch"
    a_little = machine(loop_forward=Rates(5.5, 1, 1, 1), loop_backward=Rates(5.5, 1, 1, 1))
    assert 1 / 1.25 < gain(a_little) < 1
    assert choose(AUTO, call(a_little, 1, peer="loop"), {}).strategy == "sequential"


def gain(of: Machine) -> float:
    made = call(of, 1, peer="loop")
    return made.ms("pytorch") / made.ms(Strategy("sequential"))


def test_layers_add_up() -> None:
    one, two = (call(machine(), layers=n) for n in (1, 2))
    assert two.all_ms() == pytest.approx({name: 2 * ms for name, ms in one.all_ms().items()})


def test_what_is_asked_for_runs_and_is_predicted_when_explained() -> None:
    asked = choose(Strategy("blelloch"), call(machine()), {}, explained=True)
    assert (asked.strategy, asked.reason) == ("blelloch", "as asked")
    assert set(asked.predicted) == {"pytorch", "sequential", "chunked", "blelloch", "hybrid", "newton + sequential"}
    assert asked.told == (asked.predicted, "a machine: made up", "sequential")
    silent = choose(Strategy("blelloch"), call(machine()), {})
    assert silent.told == ({}, "", "sequential")
    assert set(call(machine(), training=False).all_ms()) == {"pytorch", "sequential", "newton"}
    assert set(call(machine(), 3, training=False).all_ms()) == {"pytorch", "sequential"}, "a single chunk"


# ---- the forward

GPU = machine("cuda", 100_000, forward=Rates(1, 10, 0, 0), inference=Rates(1, 10, 0, 0), reduce=FAST, correct=FAST)
SLOW_NEWTON = machine("cuda", 100_000, forward=Rates(1, 10, 0, 0), correct=SLOW)


@pytest.mark.parametrize("training", [True, False])
def test_auto_takes_newton_where_it_is_predicted_to_pay(training: bool) -> None:
    one = Strategy("sequential")
    found = choose(one, call(GPU, training=training), {}, ahead=AHEAD)
    assert found.forward == "newton"
    assert "as asked; forward newton: Newton's iteration predicted" in found.reason
    for of, steps in ((SLOW_NEWTON, 1000), (GPU, 4), (machine(), 1000)):
        left = choose(one, call(of, steps, training=training), {}, ahead=AHEAD)
        assert (left.forward, "forward" in left.reason) == ("sequential", False)
    alone = choose(one, call(GPU, 4, training=training), {}, ahead=Forward("newton"))
    assert (alone.forward, "single chunk" in alone.reason) == ("sequential", True)


def test_what_nobody_asked_for_is_not_told() -> None:
    found = choose(Strategy("sequential"), call(GPU), {})
    assert (found.forward, found.reason) == ("sequential", "as asked")


def test_a_forward_that_was_asked_for_is_not_left_to_pytorch() -> None:
    fast_peer = machine("cuda", 1000, scan=SLOW, GRU_forward=FAST, GRU_backward=FAST)
    assert choose(AUTO, call(fast_peer), {}, ahead=AHEAD).strategy == "pytorch"
    asked = choose(AUTO, call(fast_peer), {}, ahead=strategies.newton(7))
    assert (asked.strategy, asked.forward) == ("sequential", "newton(length=7)")
    assert choose(AUTO, call(machine("cuda", 1000, **FAST_SCAN)), {}, ahead=strategies.newton()).strategy == "chunked"
    assert choose(AUTO, call(fast_peer, 2), {}, ahead=strategies.newton()).strategy == "pytorch", "one chunk"
    assert choose(AUTO, call(fast_peer, 2), {}, ahead=strategies.newton(1)).forward == "newton(length=1)"


def test_pytorch_has_to_beat_both_together() -> None:
    """A forward by Newton's iteration may be what makes ours the faster one."""
    between = GPU, {name: Rates(1, 5, 0, 0) for name in ("GRU forward", "GRU backward")}
    made = replace(between[0], rates={**between[0].rates, **between[1], "backward": FAST, "scan": FAST})
    assert choose(AUTO, call(made), {}).strategy == "pytorch"
    assert choose(AUTO, call(made), {}, ahead=AHEAD).forward == "newton"
