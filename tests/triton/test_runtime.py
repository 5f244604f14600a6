"""Modules and scans on a GPU, or where there is none, with Triton's kernels in the place of the CPU's."""

from __future__ import annotations

import copy
import functools
import warnings
from collections import OrderedDict
from subprocess import CalledProcessError
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils import _pytree as pytree

import bppsa
from bppsa import strategies
from bppsa.codegen.gpu import native, native_scan
from bppsa.codegen.gpu.native import TritonKernel
from bppsa.decisions import warn_once
from bppsa.frontend.cell import fused_cell, plans, scan_call
from bppsa.frontend.planning import sweeps
from bppsa.frontend.planning.predict import choose_scan
from bppsa.frontend.rnn import recurrent
from bppsa.plan.forward import forward_of
from bppsa.plan.strategy import Strategy
from bppsa.runtime.recurrent import backward as driver
from bppsa.runtime.recurrent.reference import loop
from tests.scan.support import leaves, same, weighted
from tests.triton import needed

needed.triton()

TritonError = pytest.importorskip("triton.errors").TritonError
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
T, B, I, H = 6, 2, 3, 5  # noqa: E741
STRATEGIES = (strategies.sequential(), strategies.chunked(2), strategies.blelloch())


@pytest.fixture(autouse=True)
def warnings_anew() -> None:
    warn_once.cache_clear()


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that ran."""
    if DEVICE == "cpu":
        on_gpu = functools.partial(sweeps.compile_recurrence.__wrapped__, device="cuda")
        for module in (recurrent, fused_cell, scan_call):
            monkeypatch.setattr(module, "compile_recurrence", lambda r, dtype, inline, device: on_gpu(r, dtype, False))
        monkeypatch.setattr(plans, "compile_recurrence", lambda r, dtype, inline, *device: on_gpu(r, dtype, False))
        monkeypatch.setattr(plans._plans.kept, "known", OrderedDict())
        monkeypatch.setattr(recurrent, "may_be_programs", lambda *call: False)  # which a CPU's kernels are called by
        recurrent.sweeps_of.cache_clear()
        recurrent.known_call.cache_clear()
    ran: list[str] = []
    call = TritonKernel.__call__

    def spy(self: TritonKernel, *args: Any, **kwargs: Any) -> None:
        ran.append(self.kernel.name)
        call(self, *args, **kwargs)

    monkeypatch.setattr(TritonKernel, "__call__", spy)
    yield ran
    recurrent.sweeps_of.cache_clear()
    recurrent.known_call.cache_clear()


def gradients(model: Any, x: Any, wanted: Any) -> list[torch.Tensor]:
    return list(torch.autograd.grad(weighted(leaves(model(x))), wanted))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("make", [nn.RNN, nn.GRU, nn.LSTM])
def test_modules(make: Any, strategy: Strategy, launched: list[str]) -> None:
    torch.manual_seed(0)
    model = make(I, H, 2, bidirectional=True).double().to(DEVICE)
    x = torch.randn(T, B, I, dtype=torch.float64, device=DEVICE, requires_grad=True)
    fast = bppsa.compile(model, strategy=strategy, forward="sequential")
    same(gradients(fast, x, [x, *model.parameters()]), gradients(model, x, [x, *model.parameters()]))
    assert fast.report.decisions[0].strategy == str(strategy)
    assert launched.count("backward") == launched.count("forward") == 4
    assert launched.count("reduction") == (0 if strategy.name == "sequential" else 4)


@pytest.mark.parametrize("make", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_forward_by_pytorch(make: Any, launched: list[str]) -> None:
    """What the backward reads is replayed; of an LSTM's c two sweeps and a reduction come first."""
    torch.manual_seed(0)
    model = make(I, H, bidirectional=True).double().to(DEVICE)
    x = torch.randn(T, B, I, dtype=torch.float64, device=DEVICE, requires_grad=True)
    fast = bppsa.compile(model, strategy=strategies.chunked(2), forward="pytorch")
    same(gradients(fast, x, [x, *model.parameters()]), gradients(model, x, [x, *model.parameters()]))
    counts = {name: launched.count(name) for name in ("forward", "reduction", "replay", "backward")}
    lstm, rnn = make is nn.LSTM, make is nn.RNN
    assert counts == {"forward": 4 * lstm, "reduction": 2 + 2 * lstm, "replay": 2 * (not rnn), "backward": 2}


@pytest.mark.parametrize("jacobian", ["full", "diagonal"])
@pytest.mark.parametrize("make", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_parallel_forward(make: Any, jacobian: str, launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its corrections are one launch, save where the Jacobian has blocks that are neither numbers nor all of it."""
    scans: list[int] = []
    monkeypatch.setattr(native_scan, "linearly", recording(native_scan.linearly, scans))
    torch.manual_seed(0)
    model = make(I, H, bidirectional=True).double().to(DEVICE)
    x = torch.randn(T, B, I, dtype=torch.float64, device=DEVICE, requires_grad=True)
    fast = bppsa.compile(model, strategy="sequential", forward=strategies.newton(2, jacobian=jacobian))
    same(gradients(fast, x, [x, *model.parameters()]), gradients(model, x, [x, *model.parameters()]))
    assert fast.report.decisions[0].numbers["fallbacks"] == 0
    assert launched.count("forward") == launched.count("reduction") + 2
    assert len(scans) == (0 if make is nn.LSTM and jacobian == "diagonal" else launched.count("reduction"))


def recording(scan: Any, chunks: list[int]) -> Any:
    def call(running: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        chunks.append(len(running))
        found: torch.Tensor = scan(running, *args, **options)
        return found

    return call


def test_packed(launched: list[str]) -> None:
    torch.manual_seed(0)
    model = nn.LSTM(I, H).double().to(DEVICE)
    x = torch.randn(T, 3, I, dtype=torch.float64, device=DEVICE, requires_grad=True)
    fast = bppsa.compile(model, strategy=strategies.chunked(2))

    def packed() -> Any:
        return pack_padded_sequence(x, torch.tensor([3, T, 1]), enforce_sorted=False)

    same(gradients(fast, packed(), [x, *model.parameters()]), gradients(model, packed(), [x, *model.parameters()]))
    assert "reduction" in launched


@pytest.mark.parametrize("name", ["ResetGRU", "MinGRU"])
def test_scans(name: str, launched: list[str]) -> None:
    torch.manual_seed(0)
    cell = getattr(bppsa.cells, name)(I, H).double().to(DEVICE)
    x = torch.randn(T, B, I, dtype=torch.float64, device=DEVICE, requires_grad=True)
    xs = (x, torch.rand(T, B, device=DEVICE) < 0.3) if name == "ResetGRU" else x
    wanted = [x, *cell.parameters()]

    def loss(strategy: str) -> torch.Tensor:
        return weighted(leaves(bppsa.scan(cell, cell.initial(B), xs, strategy=strategy)))

    def by_loop() -> torch.Tensor:
        return weighted(leaves(loop(cell, cell.initial(B), xs)))

    expected = torch.autograd.grad(by_loop(), wanted)
    for strategy in ("auto", "chunked"):
        same(torch.autograd.grad(loss(strategy), wanted), expected)
    assert launched.count("reduction") == 1
    assert launched.count("backward") == 2


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(I + H, H)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, out = x.new_zeros(x.shape[1], H), []
        for t, x_t in enumerate(x):
            h = torch.tanh(self.cell(torch.cat([x_t, h], 1))) * (t / len(x))
            out.append(h)
        return torch.stack(out)


def test_a_loop(launched: list[str]) -> None:
    torch.manual_seed(0)
    model = Loop().double().to(DEVICE)
    fast = bppsa.compile(copy.deepcopy(model), strategy="sequential")
    for _ in range(3):
        x = torch.randn(2 * T, B, I, dtype=torch.float64, device=DEVICE, requires_grad=True)
        expected = gradients(model, x, [x, *model.parameters()])
        launched.clear()
        same(gradients(fast, x, [x, *fast.parameters()]), expected)
    assert launched == ["forward", "backward"], bppsa.report(fast)


@pytest.mark.parametrize("strategy", STRATEGIES[:2], ids=str)
@pytest.mark.parametrize("name", ["DeltaNet", "sLSTM", "mLSTM"])
def test_scans_of_several_axes(name: str, strategy: Strategy, launched: list[str]) -> None:
    torch.manual_seed(0)
    cell = getattr(bppsa.cells, name)(I, 4, 2).double().to(DEVICE)
    x = torch.randn(T, B, I, dtype=torch.float64, device=DEVICE, requires_grad=True)
    carry = [leaf.requires_grad_() for leaf in leaves(cell.initial(B))]
    start = tuple(carry) if len(carry) > 1 else carry[0]
    wanted = [x, *carry, *cell.parameters()]
    for _ in range(2):
        got = torch.autograd.grad(weighted(leaves(bppsa.scan(cell, start, x, strategy=strategy))), wanted)
        same(got, torch.autograd.grad(weighted(leaves(loop(cell, start, x))), wanted))
        with torch.no_grad():
            same(leaves(bppsa.scan(cell, start, x, strategy=strategy)), leaves(loop(cell, start, x)))
            x.mul_(0.5)
    assert {"forward", "inference", "backward"} <= set(launched)
    assert ("reduction" in launched) == (strategy.name != "sequential")


def test_kernels_of_several_axes_run_on_a_gpu_where_they_are_asked_for() -> None:
    """Nobody has measured them there."""
    cell, x = bppsa.cells.DeltaNet(I, 4, 2), torch.zeros(T, B, I)
    found = plans.find(cell, [cell.initial(B)], *pytree.tree_flatten(cell.initial(B))[1:], *pytree.tree_flatten(x))
    recurrence = found[0].recurrence
    for device, asked, expected in (("cuda", "auto", "pytorch"), ("cuda", "sequential", "sequential")):
        choice = choose_scan(recurrence, x.dtype, Strategy(asked), 1000, 4, True, device, forward_of("auto"), False)
        assert choice.strategy == expected
        assert asked != "auto" or "not measured on a GPU" in choice.reason


@pytest.mark.parametrize(
    "error", [TritonError("no"), RuntimeError("PassManager::run failed"), CalledProcessError(1, "ptxas")]
)
def test_a_kernel_that_does_not_compile(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """PyTorch computes the gradients, and one warning names the kernel."""
    model = nn.GRU(I, H).double().to(DEVICE)
    x = torch.randn(T, B, I, dtype=torch.float64, device=DEVICE, requires_grad=True)
    fast = bppsa.compile(model, strategy="sequential")
    asked: list[str] = []
    launch = native.launch

    class Refused:
        def __getitem__(self, grid: Any) -> Any:
            asked.append("backward")
            raise error

    def with_refused(name: str, function: Any, *args: Any) -> None:
        launch(name, refused if name == "backward" else function, *args)

    refused = Refused()
    monkeypatch.setattr(native, "launch", with_refused)
    monkeypatch.setattr(native, "_refused", {})
    expected = gradients(model, x, [x, *model.parameters()])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [gradients(fast, x, [x, *model.parameters()]) for _ in range(2)]
    for ours in found:
        same(ours, expected)
    assert len([w for w in caught if "kernel 'backward'" in str(w.message)]) == 1
    assert len(asked) == 1, "it is not compiled again"


def test_out_of_memory_in_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.GRU(I, H).double().to(DEVICE)
    x = torch.randn(T, B, I, dtype=torch.float64, device=DEVICE, requires_grad=True)
    fast = bppsa.compile(model, strategy="blelloch")

    def full(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(driver, "reduce", full)
    with pytest.warns(RuntimeWarning, match="blelloch needs more memory"):
        found = gradients(fast, x, [x, *model.parameters()])
    same(found, gradients(model, x, [x, *model.parameters()]))
