"""Ordinary calls, in every form and with every flag: the lean path is taken and gives PyTorch's results."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

from bppsa import strategies
from bppsa.frontend.rnn import recurrent
from bppsa.frontend.rnn.classes import rewrite
from tests.machine import skip_without_lstm_of_bfloat16
from tests.modules.conftest import Taken, pytorch_run
from tests.modules.models import KINDS, equal, fast, flat

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
FORMS = ("batched", "unbatched", "sorted", "any", "even")
INPUT, HIDDEN, PROJECTION = 3, 4, 2


def inputs(form: str, steps: int, batch: int, batch_first: bool, dtype: torch.dtype) -> Any:
    if form == "unbatched":
        return torch.randn(steps, INPUT, dtype=dtype)
    x = torch.randn(steps, batch, INPUT, dtype=dtype)
    if form == "batched":
        return x.transpose(0, 1) if batch_first else x
    lengths = torch.full((batch,), steps) if form == "even" else torch.randint(1, steps + 1, (batch,))
    if form == "sorted":
        lengths = lengths.sort(descending=True).values
    return pack_padded_sequence(x, lengths, enforce_sorted=form == "sorted")


def states(model: Any, form: str, batch: int, dtype: torch.dtype) -> Any:
    lead = (model.num_layers * (1 + model.bidirectional), *(() if form == "unbatched" else (batch,)))
    h0 = torch.randn(*lead, model.proj_size or HIDDEN, dtype=dtype)
    return (h0, torch.randn(*lead, HIDDEN, dtype=dtype)) if isinstance(model, nn.LSTM) else h0


@pytest.mark.filterwarnings("ignore:dropout option")
@given(data=st.data())
def test_results_and_gradients_are_pytorch_s(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    flags: dict[str, Any] = {name: data.draw(st.booleans()) for name in ("bias", "batch_first", "bidirectional")}
    if kind is nn.LSTM and data.draw(st.booleans()):
        flags["proj_size"] = PROJECTION
    if kind is nn.RNN:
        flags["nonlinearity"] = data.draw(st.sampled_from(["tanh", "relu"]))
    dtype, form = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(FORMS))
    steps, batch = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    model = kind(INPUT, HIDDEN, num_layers=data.draw(st.integers(1, 2)), dropout=0.5, dtype=dtype, **flags)
    model.train(data.draw(st.booleans()))
    ours = fast(model)
    x = inputs(form, steps, batch, model.batch_first, dtype)
    hx = states(model, form, batch, dtype) if data.draw(st.booleans()) else None
    results = []
    for module in (ours, model):
        torch.manual_seed(0)
        model.zero_grad()
        y, final = module(x, hx)
        sum(tensor.double().square().sum() for tensor in flat((y, final))).backward()
        results.append(((y, final), [parameter.grad for parameter in module.parameters()]))
    (got, gradients), (expected, expected_gradients) = results
    assert type(got[0]) is type(expected[0])
    assert equal(got, expected)
    if isinstance(x, PackedSequence):
        assert got[0].sorted_indices is x.sorted_indices
        assert got[0].batch_sizes is x.batch_sizes
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected_gradients, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_ordinary_calls_take_the_lean_path_with_time_first(
    kind: Any, form: str, batch_first: bool, taken: list[Taken]
) -> None:
    model = kind(INPUT, HIDDEN, batch_first=batch_first)
    ours, x = fast(model), inputs(form, 5, 2, batch_first, torch.float32)
    ours(x)
    ours(x, states(model, form, 2, torch.float32))
    first, second = taken
    assert first.states is None
    assert second.states[0].shape == (1, 1 if form == "unbatched" else 2, HIDDEN)
    assert first.weights == model._flat_weights
    if isinstance(x, PackedSequence):
        assert first.x is x.data
        assert first.batch_sizes is x.batch_sizes
    else:
        assert first.x.shape == (5, 1 if form == "unbatched" else 2, INPUT)
        assert first.batch_sizes is None


def test_what_the_planner_leaves_goes_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "run", lambda *args: NotImplemented)
    model, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    assert equal(fast(model)(x), model(x))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_contexts_of_inference(context: Any, taken: list[Taken]) -> None:
    model = nn.GRU(3, 4)
    with context():
        x = torch.randn(5, 2, 3)
        assert equal(fast(model)(x), model(x))
    assert len(taken) == 1


def test_the_default_device_is_no_reason_to_leave(taken: list[Taken]) -> None:
    ours, x = fast(nn.GRU(3, 4)), torch.randn(5, 2, 3)
    with torch.device("cpu"):
        ours(x)
    assert len(taken) == 1
    with torch.device("meta"):
        ours(x, torch.zeros(1, 2, 4, device="cpu"))
    assert len(taken) == 1


@pytest.mark.parametrize("form", ["zero batch", "list states", "loose packing", "wider states than rows"])
def test_odd_calls_that_pytorch_accepts(form: str) -> None:
    model = nn.LSTM(3, 4) if form == "list states" else nn.GRU(3, 4)
    packed = pack_sequence([torch.randn(3, 3), torch.randn(2, 3)])
    unsorted = pack_sequence([torch.randn(2, 3), torch.randn(3, 3)], enforce_sorted=False)
    arguments: tuple[Any, ...] = {
        "zero batch": (torch.zeros(5, 0, 3),),
        "list states": (torch.randn(5, 2, 3), [torch.randn(1, 2, 4), torch.randn(1, 2, 4)]),
        "loose packing": (PackedSequence(torch.randn(9, 3), packed.batch_sizes),),
        "wider states than rows": (unsorted, torch.randn(1, 3, 4)),
    }[form]
    assert equal(fast(model)(*arguments), model(*arguments))


def test_lazily_negated_and_permuted_inputs() -> None:
    model, x = nn.GRU(3, 4), torch.randn(5, 2, 3, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    assert equal(fast(model)(x), model(x))
    x = torch.randn(3, 2, 5).permute(2, 1, 0)
    assert equal(fast(model)(x), model(x))


def question(kind: Any, flags: dict[str, Any], weights: torch.dtype, x: torch.dtype, given: bool, form: str) -> Any:
    torch.manual_seed(0)
    model = kind(INPUT, HIDDEN, dtype=weights, **flags)
    return model, inputs(form, 3, 2, False, x), states(model, form, 2, x) if given else None


def outcome(model: nn.Module, arguments: list[Any]) -> Any:
    try:
        return model(*arguments)
    except RuntimeError as error:
        return error


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        *itertools.product(KINDS, [{}, {"num_layers": 2, "bidirectional": True}]),
        (nn.LSTM, {"proj_size": PROJECTION, "bias": False}),
    ],
)
@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(kind: Any, flags: dict[str, Any], lower: torch.dtype, taken: list[Taken]) -> None:
    """PyTorch's dtypes where it runs, its error where it raises, over weights, inputs, states, grad and packing."""
    ran = 0
    cases = ((False, "batched", True), (True, "any", True), (False, "even", False), (True, "batched", False))
    for weights, x, (given_states, form, grad) in itertools.product(DTYPES, (*DTYPES, torch.float16), cases):
        model, *arguments = question(kind, flags, weights, x, given_states, form)
        with torch.autocast("cpu", dtype=lower), torch.set_grad_enabled(grad):
            expected, got = outcome(model, arguments), outcome(fast(model), arguments)
        if isinstance(expected, RuntimeError):
            assert isinstance(got, RuntimeError)
            assert str(expected) in str(got)
            continue
        ran += 1
        for a, b in zip(flat(got), flat(expected), strict=True):
            assert a.dtype == b.dtype
            assert torch.allclose(a.double(), b.double(), atol=3e-2)
        if grad:
            flat(got)[0].float().sum().backward()
            assert all(p.grad.dtype == p.dtype for p in model.parameters())
    assert len(taken) == ran > 0
    assert not any(call.x.dtype == torch.float16 for call in taken)


def test_autocast_is_off_while_we_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = []

    def run(*args: Any) -> Any:
        inside.append(torch.is_autocast_enabled("cpu"))
        return pytorch_run(*args)

    monkeypatch.setattr(recurrent, "run", run)
    ours = fast(nn.GRU(3, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours(torch.randn(2, 2, 3))
        assert torch.is_autocast_enabled("cpu")
    assert inside == [False]


def test_weight_shapes_that_no_kernel_may_trust(taken: list[Taken]) -> None:
    model = nn.GRU(3, 4)
    ours, _ = rewrite(model, strategies.sequential())
    ours.weight_hh_l0 = nn.Parameter(torch.randn(2, 2))
    with pytest.raises(RuntimeError, match=r"weight_hh_l0 is \[2, 2\]"):
        ours(torch.randn(5, 2, 3))
    assert not taken


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_call_under_autocast_changes_no_later_one(kind: Any) -> None:
    """The choice counts what the kernels do, and is the first to record the cell."""
    if kind is nn.LSTM:
        skip_without_lstm_of_bfloat16()
    plain = kind(11, 13)  # of sizes that no other test records
    compiled = rewrite(plain, strategies.auto())[0]
    x = torch.randn(5, 2, 11)
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled(x)[0].dtype == plain(x)[0].dtype
    torch.testing.assert_close(compiled(x)[0], plain(x)[0])
