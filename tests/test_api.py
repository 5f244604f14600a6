"""The public face: what `compile` and `explain` take, say and leave as it was; and `.report`."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.codegen.cpu.build import available
from bppsa.decisions import Decision, Report
from bppsa.errors import ArgumentError, BppsaError, Reason, StrategyError, Unsupported

T, B, I, H = 6, 3, 5, 11  # noqa: E741  of tests/recurrent, which share the kernels
needs_compiler = pytest.mark.skipif(available() is not None, reason="needs a C++ compiler")


class Model(nn.Module):
    """Two recurrences of three kinds of things around them: a buffer that changes, random numbers, and a scan."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(I)
        self.encoder = nn.ModuleDict({"gru": nn.GRU(I, H)})
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(H, H)
        self.register_buffer("calls", torch.zeros(()))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.norm(x.flatten(0, 1)).view_as(x)
        y, h = self.encoder["gru"](x)
        y = self.drop(self.head(y))
        return bppsa.scan(self.decay, h[0], y)[1]

    def decay(self, h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(torch.igamma(torch.ones_like(h), h * h) + y)  # not one of the ops of a fused cell
        return h, h


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(T, B, I, dtype=torch.float64)


class Own(nn.GRU):
    def forward(self, input: Any, hx: Any = None) -> Any:
        return nn.GRU.forward(self, input * 2, hx)


# ---- arguments


@pytest.mark.parametrize("arguments", [{"strategy": "fastest"}, {"fallback": "nothing"}, {"strategy": ""}])
def test_unknown_choices_list_the_known_ones(arguments: dict[str, str]) -> None:
    with pytest.raises(StrategyError) as caught:
        bppsa.compile(nn.Linear(2, 2), **arguments)  # type: ignore[arg-type]
    said = str(caught.value)
    assert repr(next(iter(arguments.values()))) in said
    known = ("auto", "sequential") if "strategy" in arguments else ("eager", "inductor")
    assert all(name in said for name in known)
    assert isinstance(caught.value, (ValueError, BppsaError))
    if "strategy" in arguments:
        with pytest.raises(StrategyError, match="unknown strategy"):
            bppsa.explain(nn.Linear(2, 2), torch.ones(1, 2), **arguments)  # type: ignore[arg-type]


def test_arguments_are_named() -> None:
    with pytest.raises(TypeError):
        bppsa.compile(nn.Linear(2, 2), "auto")  # type: ignore[misc]


def test_a_function_is_no_model() -> None:
    with pytest.raises(BppsaError, match=r"takes an nn\.Module, not a function; .* bppsa\.scan.* torch\.compile\("):
        bppsa.compile(lambda x: x)  # type: ignore[arg-type]


def test_the_face_of_the_package() -> None:
    assert {"compile", "explain", "scan", "cells", "errors", "__version__"} <= set(bppsa.__all__)
    assert dir(bppsa) == sorted(bppsa.__all__)
    assert all(getattr(bppsa, name) is not None for name in bppsa.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bppsa.nothing  # noqa: B018


# ---- explain


@needs_compiler
def test_explain_says_what_is_where_and_why(x: Tensor) -> None:
    report = bppsa.explain(Model(), x, strategy="sequential")
    gru, scan = report.decisions
    assert (gru.path, gru.kind, gru.strategy, gru.reason) == ("encoder.gru", "gru", "sequential", "as asked")
    assert {"T": T, "B": B, "H": H}.items() <= gru.numbers.items()
    assert set(gru.predicted) == {"pytorch", "sequential", "chunked", "blelloch", "hybrid", "newton + sequential"}
    assert all(ms > 0 for ms in gru.predicted.values())
    assert gru.machine
    assert (scan.kind, scan.strategy) == ("scan", "pytorch")
    assert "aten.igamma.default" in scan.reason
    assert scan.numbers == {"T": T, "B": B, "H": H}
    told, first, times, second = str(report).splitlines()
    ratio = gru.predicted["pytorch"] / gru.predicted["sequential"]
    assert re.fullmatch(
        r"encoder.gru will be (faster|slower): predicted (.*) times as fast as .*; PyTorch runs (.*)", told
    )
    assert float(told.split()[5]) == pytest.approx(ratio, rel=0.1)
    assert times.startswith("    predicted ms: ")
    assert times.endswith(f"({gru.machine})")
    lines = first, second
    for line, decision in zip(lines, report.decisions, strict=True):
        assert all(part in line for part in (decision.path, decision.kind, decision.strategy, decision.reason))
        assert f"T={T}, B={B}, H={H}" in line


def test_explain_leaves_everything_as_it_was(x: Tensor) -> None:
    model = Model()
    model.calls += 3
    before = copy.deepcopy(model.state_dict())
    versions = [p._version for p in model.parameters()]
    random = torch.get_rng_state()
    bppsa.explain(model, x)
    assert torch.equal(torch.get_rng_state(), random)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert [p._version for p in model.parameters()] == versions
    assert all(p.grad is None for p in model.parameters())
    assert model.training
    assert type(model.encoder["gru"]) is nn.GRU
    assert not hasattr(model, "report")
    assert not model._forward_pre_hooks


def test_explain_leaves_everything_as_it_was_also_after_an_error(x: Tensor) -> None:
    model = Model()
    random = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        bppsa.explain(model, x[..., :-1])
    assert model.calls == 0
    assert torch.equal(torch.get_rng_state(), random)
    bppsa.explain(model, x)


def test_explain_of_a_function(x: Tensor) -> None:
    def call(x: Tensor) -> Tensor:
        return bppsa.scan(lambda h, x: (h.flip(1) + x, torch.rand(1)), x[0], x)[1]

    random = torch.get_rng_state()
    (decision,) = bppsa.explain(call, x).decisions
    assert (decision.kind, decision.strategy) == ("scan", "pytorch")
    assert decision.path == f"lambda (test_api.py:{call.__code__.co_firstlineno + 1})"
    assert torch.equal(torch.get_rng_state(), random)


def test_explain_where_there_is_nothing_to_do() -> None:
    report = bppsa.explain(nn.Linear(2, 2), torch.ones(1, 2))
    assert report.decisions == ()
    assert str(report).startswith("nothing to rewrite: the model runs as PyTorch runs it (it has no nn.RNN, nn.GRU or")
    scanless = bppsa.explain(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)), torch.ones(1, 2))
    assert str(scanless).splitlines()[0] == str(report).splitlines()[0]


def test_explain_begins_with_why_nothing_is_rewritten(x: Tensor) -> None:
    report = bppsa.explain(nn.Sequential(Own(I, H)).double(), x)
    assert report.note == f"nothing to rewrite: the model runs as PyTorch runs it ({report.decisions[0].reason})"


def test_explain_points_at_the_reasons_where_there_are_several(x: Tensor) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.usual = Own(I, H), nn.GRU(H, H)

        def forward(self, x: Tensor) -> Tensor:
            return self.usual(self.own(x)[0])[0]

    both = bppsa.explain(Two().double(), x[:1])  # one step: over before a sweep has begun
    assert both.note.endswith("(each part has its reason below)")


def test_explain_without_inputs_names_them() -> None:
    for call, takes in ((nn.GRU(I, H), r"GRU takes \(input, hx=None\)"), (lambda a, b: a, r"takes \(a, b\)")):
        with pytest.raises(ArgumentError, match=rf"bppsa\.explain\(model, \*inputs\).* {takes}.*'(input|a)'") as caught:
            bppsa.explain(call)
        assert isinstance(caught.value, TypeError)
    with pytest.raises(ArgumentError, match="not a str"):
        bppsa.explain("model")  # type: ignore[arg-type]


def test_explain_of_a_cell_hints_at_its_scan(x: Tensor) -> None:
    class Cell(nn.Module):
        def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return h + x, h

    for cell in (lambda h, x: (h + x, h), Cell()):
        report = bppsa.explain(cell, x[0], x)
        assert report.decisions == ()
        assert "bppsa.explain(lambda xs: bppsa.scan(cell, carry, xs), xs)" in str(report)
    assert "explained by its scan" not in str(bppsa.explain(nn.Bilinear(I, I, 2).double(), x[0], x[0]))


def test_explain_names_what_was_left_alone_and_why(x: Tensor) -> None:
    model = nn.Sequential(Own(I, H)).double()
    (decision,) = bppsa.explain(model, x).decisions
    assert (decision.path, decision.strategy) == ("0", "pytorch")
    assert "forward of its own" in decision.reason
    model = nn.Sequential(nn.GRU(I, H).double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert len(bppsa.explain(model, x).decisions) == 1


def test_explain_of_a_large_model_is_about_the_cost(x: Tensor) -> None:
    """With "auto" the numbers decide; both predictions and their quotient are told."""
    (decision,) = bppsa.explain(nn.GRU(I, H).double(), x).decisions
    assert decision.path == ""
    assert str(decision).startswith("<model> (gru; ")
    assert "predicted" in decision.reason
    assert {"predicted ms", "PyTorch's"} <= set(decision.numbers)


@needs_compiler
def test_explain_agrees_with_compile(x: Tensor) -> None:
    model = Model()
    for strategy in ("auto", "sequential"):
        fast = bppsa.compile(model, strategy=strategy)
        fast(x)
        explained = bppsa.explain(model, x, strategy=strategy).decisions
        for ours, theirs in zip(fast.report.decisions, explained, strict=True):
            shape = {"J^T": "dense 11x11, 121 non-zeros"} if theirs.kind == "gru" else {}
            told = {"predicted": theirs.predicted, "machine": theirs.machine}
            assert replace(ours, numbers={**ours.numbers, **shape}, **told) == theirs


class Recognizer(nn.Module):
    """A batch norm keeps Python around its loop, so that the first calls are watched."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.rnn, self.cell = nn.BatchNorm1d(I), nn.GRU(I, H), nn.GRUCell(H, H)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.rnn(self.norm(x.flatten(0, 1)).view_as(x))
        h = x.new_zeros(x.shape[1:])
        for step in x:
            h = self.cell(step, h)
        return h


@needs_compiler
def test_explain_tells_of_loops_what_later_calls_decide(x: Tensor) -> None:
    model = Recognizer().double()
    before = copy.deepcopy(model.state_dict())
    found = bppsa.explain(model, torch.cat([x, x]), strategy="sequential")
    assert {(d.kind, d.strategy) for d in found.decisions} == {("gru", "sequential"), ("loop", "sequential")}
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


# ---- report


@needs_compiler
def test_a_report_is_of_the_last_call(x: Tensor) -> None:
    fast = bppsa.compile(Model(), strategy="sequential")
    assert [d.strategy for d in fast.report.decisions] == ["waiting"]
    fast(x)
    first = fast.report.decisions
    assert [d.numbers["T"] for d in first] == [T, T]
    fast(x[:2])
    assert [d.numbers["T"] for d in fast.report.decisions] == [2, 2]
    assert [d.numbers["T"] for d in first] == [T, T]


@needs_compiler
def test_each_model_has_its_own_report(x: Tensor) -> None:
    one, other = (bppsa.compile(nn.Sequential(nn.GRU(I, H).double()), strategy="sequential") for _ in range(2))
    one(x)
    assert [m.report.decisions[0].strategy for m in (one, other)] == ["sequential", "waiting"]
    other(x[:3])
    assert [m.report.decisions[0].numbers["T"] for m in (one, other)] == [T, 3]


def test_before_the_first_call_a_report_lists_what_waits(x: Tensor) -> None:
    fast = bppsa.compile(nn.ModuleDict({"ours": nn.GRU(I, H).double(), "own": Own(I, H)}))
    head, ours, own = str(fast.report).splitlines()
    assert "no call has run yet" in head
    assert ours == "ours (gru): waiting: decided in its first call"
    assert own.startswith("own (gru): pytorch: Own has a forward of its own")
    assert "no call has run yet" in str(bppsa.compile(nn.Linear(2, 2)).report)
    for model in (nn.LSTM(I, H).double(), nn.Sequential(nn.LSTM(I, H).double())):
        fast = bppsa.compile(model)
        assert "(lstm): waiting" in str(fast.report)
        fast(x)
        assert "waiting" not in str(fast.report)
        assert "not run" not in str(fast.report)


def test_a_call_that_pytorch_runs_says_why(x: Tensor) -> None:
    fast = bppsa.compile(nn.GRU(I, H).double(), strategy="sequential")
    torch.func.grad(lambda x: fast(x)[0].sum())(x)
    assert "functorch" in str(fast.report)
    fast.half()
    fast(x.half())
    assert "one dtype that has kernels" in str(fast.report)
    assert [(d.kind, d.strategy) for d in fast.report.decisions] == [("gru", "pytorch")]


def test_what_goes_to_inductor_does_not_wait(x: Tensor) -> None:
    for model in (nn.GRU(I, H), nn.Sequential(nn.GRU(I, H), Own(I, H))):
        report = bppsa.compile(model, fallback="inductor").report
        assert "(gru): sequential: one op of the graph" in str(report)
        assert "not run" not in str(report)


@pytest.mark.parametrize("grad", [True, False])
def test_a_prediction_says_of_what_it_is(x: Tensor, grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        (decision,) = bppsa.explain(nn.GRU(I, H), torch.randn(500, B, I)).decisions
    assert decision.reason.startswith("forward and backward predicted" if grad else "forward predicted")


def test_what_was_left_alone_is_in_every_report(x: Tensor) -> None:
    fast = bppsa.compile(nn.Sequential(Own(I, H).double()))
    for _ in range(2):
        assert [d.strategy for d in fast.report.decisions] == ["pytorch"]
        fast(x)


def test_decisions_are_data() -> None:
    decision = Decision("a.b", "gru", "sequential", "because", {"T": 3, "ms": 1.23456, "on": "cpu"})
    assert str(decision) == "a.b (gru; T=3, ms=1.235, on=cpu): sequential: because"
    assert Decision("a.b", "gru", "sequential", "because", {"T": 3, "ms": 1.23456, "on": "cpu"}) == decision
    assert str(Decision("", "gru", "pytorch", "because")) == "<model> (gru): pytorch: because"
    other = Decision("", "gru", "pytorch", "because")
    assert str(Report([decision, other, decision])) == f"{decision} (2 times)\n{other}"
    taken: list[Decision] = []
    report = Report(taken)
    taken.append(decision)
    assert report.decisions == (decision,), "a call that goes on may still add to it"


def test_a_whole_reason_takes_nothing_beside_it() -> None:
    assert Unsupported("what", op="op", mend="mend").reason == Reason("what", op="op", mend="mend")
    with pytest.raises(TypeError, match="already"):
        Unsupported(Reason("what"), op="op")


# ---- fallback


@needs_compiler
def test_the_rest_may_go_to_inductor(x: Tensor) -> None:
    """The recurrence is ours, the layers around it are compiled, results and gradients are PyTorch's."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.leave = nn.GRU(I, H), nn.Linear(H, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.leave(self.inner(x)[0])) * 2

    torch._dynamo.reset()
    model = Head().double()
    fast = bppsa.compile(model, strategy="sequential", fallback="inductor")
    for steps in (T, 4):
        ours, theirs = fast(x[:steps]), model(x[:steps])
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        wanted = list(model.parameters())
        got, expected = (torch.autograd.grad(y.pow(2).sum(), wanted) for y in (ours, theirs))
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    torch._dynamo.reset()
