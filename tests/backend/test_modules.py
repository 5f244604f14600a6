"""nn.RNN, nn.GRU and nn.LSTM: one op in the graph for each call, PyTorch's numbers, and what is left to PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import bppsa
from bppsa.errors import StrategyError
from bppsa.runtime.recurrent.library import Library
from bppsa.runtime.recurrent.newton import Solver
from tests.backend.support import B, H, I, T, Within, compiled, leaves, random, recurrences, results, same

MODULES: dict[str, Callable[[], nn.RNNBase]] = {
    "gru": lambda: nn.GRU(I, H),
    "gru-batch-first": lambda: nn.GRU(I, H, 2, batch_first=True),
    "gru-bidirectional": lambda: nn.GRU(I, H, 2, bidirectional=True, bias=False),
    "lstm": lambda: nn.LSTM(I, H, 3),
    "lstm-projection": lambda: nn.LSTM(I, H, 2, proj_size=2, bidirectional=True),
    "lstm-no-bias": lambda: nn.LSTM(I, H, bias=False, proj_size=4),
    "rnn-tanh": lambda: nn.RNN(I, H, 2),
    "rnn-relu": lambda: nn.RNN(I, H, bidirectional=True, nonlinearity="relu"),
    "all-dropped": lambda: nn.GRU(I, H, 3, dropout=1.0),
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_one_op_for_one_call(make: Callable[[], nn.RNNBase], graphs: list[fx.GraphModule]) -> None:
    model = Within(make()).double()
    inputs = [random(T, B, I)]
    same(results(compiled(model), inputs, [*model.parameters()]), results(model, inputs, [*model.parameters()]))
    assert len(recurrences(graphs)) == len(graphs) == 1


@pytest.mark.parametrize("make", [MODULES["gru"], MODULES["lstm-projection"]])
@pytest.mark.parametrize("batched", [True, False])
def test_given_states(make: Callable[[], nn.RNNBase], batched: bool, graphs: list[fx.GraphModule]) -> None:
    model = make().double()
    batch = (B,) if batched else ()
    rows = model.num_layers * (2 if model.bidirectional else 1)
    widths = (model.proj_size, H) if model.mode == "LSTM" else (H,)
    inputs = [random(T, *batch, I), *(random(rows, *batch, width) for width in widths)]

    def call(x: Tensor, *states: Tensor) -> Any:
        return model(x * 2, states if len(states) > 1 else states[0])

    same(results(compiled(call), inputs, [*model.parameters()]), results(call, inputs, [*model.parameters()]))
    assert len(recurrences(graphs)) == 1


def test_inductor_runs_one_forward_and_one_backward_op(graphs: list[fx.GraphModule]) -> None:
    model = Within(nn.LSTM(I, H, 2)).double()
    fast = torch.compile(model, backend="bppsa", fullgraph=True)
    for steps in (5, 9, 17, 7):
        inputs = [random(steps, 16, I)]
        results(fast, inputs, [*model.parameters()])  # while Dynamo traces, the op runs on fake tensors
        with torch.profiler.profile() as profile:
            got = results(fast, inputs, [*model.parameters()])
        names = [event.name for event in profile.events()]
        assert names.count("bppsa::recurrence") == names.count("bppsa::recurrence_backward") == 1
        same(got, results(model, inputs, [*model.parameters()]))
    assert len(graphs) == 2  # the first length, and all others


def test_any_number_of_lengths_and_batches_is_two_graphs(graphs: list[fx.GraphModule]) -> None:
    model = Within(nn.GRU(I, H, batch_first=True)).double()
    fast = compiled(model)
    for steps, batch in ((5, 4), (6, 7), (11, 2), (300, 3), (2, 9)):
        inputs = [random(batch, steps, I)]
        same(results(fast, inputs, [*model.parameters()]), results(model, inputs, [*model.parameters()]))
    assert len(graphs) == 2


@pytest.mark.parametrize("shape", [(1, B, I), (T, 1, I), (T, 0, I)])
def test_sizes_of_one_and_none(shape: tuple[int, ...], graphs: list[fx.GraphModule]) -> None:
    model = nn.GRU(I, H, 2).double()
    inputs = [random(*shape)]
    same(results(compiled(model), inputs, [*model.parameters()]), results(model, inputs, [*model.parameters()]))
    assert len(recurrences(graphs)) == 1


@pytest.mark.parametrize("fallback", ["eager", "inductor"])
def test_no_step_is_pytorchs_error(fallback: str) -> None:
    """As the first call, and after calls of other lengths."""
    model = nn.GRU(I, H).double()
    fast = compiled(model, fallback, fullgraph=False)
    for steps in (0, T, T + 1, 0):
        x = random(steps, B, I)
        if steps:
            same(leaves(fast(x)), leaves(model(x)))
            continue
        for each in (model, fast):
            with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0 in RNN"):
                each(x)


def test_a_gradient_of_a_gradient_is_an_error() -> None:
    x = random(T, B, I)
    y, _ = compiled(nn.GRU(I, H).double())(x)
    (gradient,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="recurrence_backward"):
        gradient.square().sum().backward()


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, I)
        self.encoder, self.decoder = nn.GRU(I, H, bidirectional=True), nn.LSTM(2 * H, H)
        self.attend = nn.MultiheadAttention(H, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        first, state = self.encoder(x)
        again, _ = self.encoder(x.flip(0), state)
        y, _ = self.decoder(first + again)
        return self.attend(y, y, y)[0]


def test_several_and_one_twice(graphs: list[fx.GraphModule]) -> None:
    model = Several().double()
    tokens = torch.randint(11, (T, B))
    same(results(compiled(model), [tokens], [*model.parameters()]), results(model, [tokens], [*model.parameters()]))
    assert len(recurrences(graphs)) == 3


@pytest.mark.parametrize("frozen", ["", "weight_ih_l0 bias_hh_l0", "all"])
@pytest.mark.parametrize("x_grad", [True, False])
def test_gradients_only_where_asked(frozen: str, x_grad: bool) -> None:
    model = nn.GRU(I, H).double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen != "all" and name not in frozen.split())
    inputs = [random(T, B, I, grad=x_grad)]
    if frozen == "all" and not x_grad:
        assert not compiled(model)(*inputs)[0].requires_grad
    else:
        same(results(compiled(model), inputs, [*model.parameters()]), results(model, inputs, [*model.parameters()]))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_saved(mode: Callable[[], Any], graphs: list[fx.GraphModule]) -> None:
    model = nn.GRU(I, H, 2, dropout=0.5).double().eval()
    fast, x = compiled(model), random(T, B, I)
    with mode():
        same(leaves(fast(x)), leaves(model(x)))
    same(leaves(fast(x)), leaves(model(x)))
    without, with_gradients = recurrences(graphs)
    assert (without.args[-1], with_gradients.args[-1]) == (False, True)


@pytest.mark.parametrize("make", [nn.GRU, nn.LSTM])
def test_seeded_dropout_is_pytorchs(make: Any) -> None:
    model = make(I, H, 3, dropout=0.4, bidirectional=True).double()
    inputs = [random(T, B, I)]

    def seeded(run: Callable[..., Any]) -> list[Tensor]:
        torch.manual_seed(7)
        return results(run, inputs, [*model.parameters()])

    same(seeded(compiled(model)), seeded(model))


def test_parametrized_and_functional(graphs: list[fx.GraphModule]) -> None:
    model = nn.utils.parametrizations.weight_norm(nn.GRU(I, H).double(), "weight_hh_l0")
    inputs = [random(T, B, I)]
    same(results(compiled(model), inputs, [*model.parameters()]), results(model, inputs, [*model.parameters()]))
    plain = nn.GRU(I, H).double()
    others = {name: random(*value.shape) for name, value in plain.named_parameters()}

    def call(x: Tensor) -> Any:
        return torch.func.functional_call(plain, others, (x,))

    same(results(compiled(call), inputs, [*others.values()]), results(call, inputs, [*others.values()]))
    assert len(recurrences(graphs)) == 2


class Own(nn.GRU):
    """As a module of bppsa.compile: its own path in eager, PyTorch's for Dynamo."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return super().forward(input, hx)
        raise AssertionError("ran in eager")


def test_subclass_that_steps_aside(graphs: list[fx.GraphModule]) -> None:
    model, plain = Own(I, H), nn.GRU(I, H)
    model.load_state_dict(plain.state_dict())
    x = random(T, B, I, dtype=torch.float32)
    same(leaves(compiled(Within(model).inner)(x)), leaves(plain(x)), 1e-6)
    assert len(recurrences(graphs)) == 1


# What is left to PyTorch


def half(model: nn.Module, x: Tensor) -> Tensor:
    return model.half()(x.half())[0]


def autocast(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(x)[0]


def packed(model: nn.Module, x: Tensor) -> Tensor:
    data = pack_padded_sequence(x, torch.tensor([3, 5, 1, 2]), enforce_sorted=False)
    return pad_packed_sequence(model(data)[0])[0]


def transformed(model: nn.Module, x: Tensor) -> Tensor:
    return torch.func.grad(lambda x: model(x)[0].square().sum())(x)


def tangent(model: nn.Module, x: Tensor) -> Tensor:
    return torch.func.jvp(lambda x: model(x)[0], (x,), (x,))[1]


later = pytest.mark.skipif(
    torch.__version__ < "2.12", reason="Dynamo of 2.11 raises in pad_packed_sequence (README, Limits)"
)


@pytest.mark.parametrize("call", [half, autocast, pytest.param(packed, marks=later), transformed, tangent])
def test_left_to_pytorch(call: Callable[..., Tensor], graphs: list[fx.GraphModule]) -> None:
    model, x = nn.GRU(I, H), random(T, B, I, dtype=torch.float32, grad=False)
    same([compiled(call, fullgraph=False)(model, x)], [call(model, x)], 1e-6)
    assert not recurrences(graphs)


def test_packed_data_stays_with_pytorch(graphs: list[fx.GraphModule]) -> None:
    model = nn.GRU(I, H, 2).double()
    data: PackedSequence = pack_padded_sequence(random(T, B, I, grad=False), torch.tensor([5, 3, 3, 1]))

    def call(x: Tensor, state: Tensor) -> Any:
        return torch.gru(x, data.batch_sizes, state, model._flat_weights, True, 2, 0.0, False, False)

    inputs = [data.data.clone().requires_grad_(), random(2, B, H)]
    fast = compiled(call, fullgraph=False)
    same(results(fast, inputs, [*model.parameters()]), results(call, inputs, [*model.parameters()]))
    assert not recurrences(graphs)


def test_bad_input_is_pytorchs_error() -> None:
    model = nn.GRU(I, H)
    fast = compiled(model, fullgraph=False)
    for x in (torch.zeros(T, B, I + 1), torch.zeros(T, B, I, dtype=torch.float64), torch.zeros(T)):
        with pytest.raises(Exception) as expected:  # noqa: PT011
            model(x)
        with pytest.raises(expected.type):
            fast(x)


@pytest.mark.parametrize("strategy", ["blelloch", bppsa.strategies.chunked(length=2)], ids=str)
def test_a_strategy_is_an_option(strategy: object, graphs: list[fx.GraphModule]) -> None:
    """It is an argument of the op, and what the op's backward runs by."""
    torch.manual_seed(0)
    model, x = Within(nn.GRU(I, H)).double(), random(T, B, I)
    options = {"fallback": "eager", "strategy": strategy}
    fast = torch.compile(model, backend="bppsa", fullgraph=True, options=options)
    same(results(fast, [x], [*model.parameters()]), results(model, [x], [*model.parameters()]))
    assert [node.args[7] for node in recurrences(graphs)] == [str(strategy)]


def test_an_unknown_strategy_is_an_error() -> None:
    fast = torch.compile(nn.GRU(I, H), backend="bppsa", options={"strategy": "fastest"})
    with pytest.raises(ValueError, match=r"auto, sequential, chunked"):
        fast(random(T, B, I, dtype=torch.float32))


def test_a_parallel_forward() -> None:
    model = Within(nn.GRU(I, H)).double()
    options = {"fallback": "eager", "forward": "newton(length=2)", "strategy": "chunked"}
    fast = torch.compile(model, backend="bppsa", fullgraph=True, options=options)
    for steps in (T, 9):
        inputs = [random(steps, B, I)]
        with mock.patch.object(Solver, "run", autospec=True, side_effect=Solver.run) as run:
            got = results(fast, inputs, [*model.parameters()])
        assert run.call_count == 1
        same(got, results(model, inputs, [*model.parameters()]))


@pytest.mark.parametrize("make", [MODULES["gru-bidirectional"], MODULES["lstm-projection"]])
def test_a_forward_by_pytorch(make: Callable[[], nn.RNNBase], graphs: list[fx.GraphModule]) -> None:
    model, inputs = Within(make()).double(), [random(T, B, I)]
    options = {"fallback": "eager", "forward": "pytorch", "strategy": "chunked"}
    fast = torch.compile(model, backend="bppsa", fullgraph=True, options=options)
    with mock.patch.object(Library, "layer", autospec=True, side_effect=Library.layer) as layer:
        same(results(fast, inputs, [*model.parameters()]), results(model, inputs, [*model.parameters()]))
    assert layer.call_count == model.inner.num_layers
    assert len(recurrences(graphs)) == 1


def test_an_unknown_forward() -> None:
    fast = torch.compile(Within(nn.GRU(I, H)), backend="bppsa", options={"forward": "newtons"})
    with pytest.raises(StrategyError, match="unknown forward"):
        fast(random(T, B, I).float())
