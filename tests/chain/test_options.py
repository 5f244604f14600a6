"""strict and budget; what explain shows; auto."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.errors import BppsaError, ChainError
from bppsa.plan.chain_choice import MACHINES, MARGIN, OperationRates, linear_us, may_gain, scan_us
from bppsa.plan.chain_cost import JacobianSize, affordable, formed
from bppsa.plan.strategy import Strategy, divide
from tests.chain.test_exact import check
from tests.chain.zoo import mlp


class Unruled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, 1)


def with_unruled() -> nn.Module:
    return nn.ModuleDict({"net": nn.Sequential(mlp(nn.Tanh, 2), Unruled(), nn.Linear(3, 3), nn.Tanh())})["net"].double()


X = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_a_stage_without_a_rule_splits_the_scan_and_is_named() -> None:
    decision = check(with_unruled(), X.clone().requires_grad_(), "blelloch")
    assert decision.numbers["segments"] == 3
    (line,) = (line for line in decision.details if "a VJP" in line)
    assert line.startswith("1 (cumsum): a VJP: aten.cumsum.default: no rule")


def test_strict_names_module_op_shape_and_mend() -> None:
    fast = bppsa.compile(with_unruled(), strategy="blelloch", strict=True)
    with pytest.raises(ChainError, match=r"^1: \[3, 3\] -> \[3, 3\]: aten\.cumsum\.default: no rule.*VJP.*strict=True"):
        fast(X)
    assert issubclass(ChainError, (BppsaError, RuntimeError))
    assert bppsa.compile(mlp(nn.Tanh).double(), strategy="blelloch", strict=True)(X).requires_grad
    with torch.no_grad():  # nothing is scanned there
        fast(X)


def test_strict_wants_a_chain() -> None:
    fast = bppsa.compile(nn.Sequential(Unruled(), nn.Linear(5, 3).double()), strategy="blelloch", strict=True)
    with pytest.raises(ChainError, match="strict=True"):
        fast(X.clone().requires_grad_())


@pytest.mark.parametrize("strategy", ["blelloch", "hybrid(up_levels=2)", "chunked(length=2)"])
def test_a_budget_stops_the_up_sweep(strategy: str) -> None:
    model, x = mlp(nn.Tanh, 8).double(), X.clone().requires_grad_()
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    for budget in (0, 4_000, 10**9):
        fast = bppsa.compile(model, strategy=strategy, budget=budget)
        for ours, theirs in zip(torch.autograd.grad(fast(x).sum(), list(fast.parameters())), expected, strict=True):
            assert (ours - theirs).norm() <= 1e-12 * theirs.norm()
        (decision,) = fast.report.decisions
        stopped = [line for line in decision.details if " of 0 B" in line or " of 3.91 KiB" in line]
        assert len(stopped) == (budget < 10**9)
    with pytest.raises(ChainError, match=r"non-zeros; the scan needs .* larger budget="):
        bppsa.compile(model, strategy=strategy, budget=0, strict=True)(x)


def test_explain_shows_stages_levels_and_why() -> None:
    report = bppsa.explain(mlp(nn.Tanh, 8).double(), X, strategy="blelloch")
    (decision,) = report.decisions
    text = str(report)
    assert "dense 5 x 7, 35 non-zeros a sample" in text
    assert "level 1: " in text
    assert "MFLOP" in text
    assert "MiB" in text
    (asked,) = bppsa.explain(mlp(nn.Tanh, 8).double(), X, strategy="sequential").decisions
    assert asked.strategy == "pytorch"
    assert asked.details == tuple(line for line in decision.details if "level" not in line)


def test_explain_without_a_strategy_says_nothing_of_stages() -> None:
    """It has said that nothing is rewritten; what a scan would take is for who asks for one."""
    report = bppsa.explain(mlp(nn.Tanh, 8).double(), X)
    assert report.decisions == ()
    assert len(str(report).splitlines()) == 1


def test_auto_leaves_a_model_as_it_is() -> None:
    model = mlp(nn.Tanh).double()
    for strategy in ("auto", "sequential"):  # one stage after the other is what PyTorch does
        assert type(bppsa.compile(model, strategy=strategy)) is type(model)
    (decision,) = bppsa.explain(model, X, strategy="sequential").decisions
    assert (decision.strategy, decision.numbers["stages"]) == ("pytorch", 7)
    assert not any(may_gain(device) for device in MACHINES)


# ---- costs


def narrow(stages: int) -> list[JacobianSize]:
    return [JacobianSize(8, 8, 64, 1) for _ in range(stages)]


def test_a_scan_gains_where_waiting_is_what_costs() -> None:
    """Section 3.6: with workers without end, and steps that wait for each other, time is the number of steps."""
    many_workers = OperationRates(issue=0.001, step=1, flops=1e9)
    division = divide(Strategy("blelloch"), 64)
    assert linear_us(narrow(64), 1, many_workers) > MARGIN * scan_us(division, narrow(64), 1, many_workers)
    for machine in MACHINES.values():
        assert scan_us(division, narrow(64), 16, machine) > linear_us(narrow(64), 16, machine)


def test_products_are_counted_as_section_3_6_has_it() -> None:
    made = formed(divide(Strategy("blelloch"), 8), narrow(8), 8)
    assert [entry.count for entry in made] == [6, 3, 1]  # a[0] is a vector, and what meets a[n] is never read
    assert [entry.flops for entry in made] == [0, 3 * 2 * 8**3, 2 * 8**3]
    assert formed(divide(Strategy("sequential"), 8), narrow(8), 8) == []


def test_what_is_affordable_forms_no_more_than_it_may() -> None:
    asked = divide(Strategy("blelloch"), 16)
    for budget in range(0, 20_000, 500):
        division, skipped = affordable(asked, narrow(16), 8, budget)
        assert sum(entry.bytes for entry in formed(division, narrow(16), 8)) <= budget or division.count == 1
        assert bool(skipped) == (division != asked)


def test_explain_takes_the_options_of_compile() -> None:
    takes = list(inspect.signature(bppsa.compile).parameters.items())
    explained = inspect.signature(bppsa.explain).parameters
    of_schedules = [name for name, _ in takes].index("schedule")  # it and what follows say how to train
    told = {name: parameter for name, parameter in takes[1:of_schedules] if name != "fallback"}  # which it is not about
    assert {name: explained[name] for name in list(explained)[2:]} == told
    with pytest.raises(ChainError, match="no rule"):
        bppsa.explain(with_unruled(), X, strategy="blelloch", strict=True)
    tight, free = (str(bppsa.explain(mlp(nn.Tanh).double(), X, strategy="blelloch", budget=b)) for b in (1, None))
    assert tight != free
