"""torch.compile(model, backend="bppsa"): what is in the graph, what comes out, and what others see of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._higher_order_ops.scan import scan as torch_scan
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import bppsa
from bppsa import _backend
from bppsa.errors import StrategyError

T, B, I, H = 5, 4, 3, 6  # noqa: E741


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[fx.GraphModule]]:
    """The graphs that the backend handed to Inductor or eager PyTorch."""
    seen: list[fx.GraphModule] = []
    lookup = _backend.lookup_backend

    def spy(name: str) -> Callable[..., Any]:
        def compiler(graph: fx.GraphModule, inputs: list[Any]) -> Any:
            seen.append(graph)
            return lookup(name)(graph, inputs)

        return compiler

    monkeypatch.setattr(_backend, "lookup_backend", spy)
    torch._dynamo.reset()
    counters.clear()
    yield seen
    torch._dynamo.reset()


def compiled(model: Callable[..., Any], fallback: str = "eager", fullgraph: bool = True) -> Callable[..., Any]:
    return torch.compile(model, backend="bppsa", fullgraph=fullgraph, options={"fallback": fallback})


def nodes(graph: fx.GraphModule, op: Any) -> list[fx.Node]:
    return list(graph.graph.find_nodes(op="call_function", target=op))


def recurrences(graphs: Sequence[fx.GraphModule]) -> list[fx.Node]:
    return [node for graph in graphs for node in nodes(graph, torch.ops.bppsa.recurrence)]


def leaves(result: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def results(model: Callable[..., Any], inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """All outputs, and the gradients of a loss that reads each of them."""
    outputs = leaves(model(*inputs))
    loss = sum((output * torch.linspace(0.5, 1.5, output.numel()).view_as(output)).sum() for output in outputs)
    wanted = [tensor for tensor in (*inputs, *parameters) if tensor.requires_grad]
    return [*outputs, *torch.autograd.grad(loss, wanted)]


def same(got: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-10) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def random(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = True) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=grad)


class Within(nn.Module):
    """A recurrent module among ordinary ones."""

    def __init__(self, inner: nn.RNNBase) -> None:
        super().__init__()
        self.enter, self.inner = nn.Linear(I, I), inner
        self.leave = nn.Linear((inner.proj_size or H) * (2 if inner.bidirectional else 1), 2)

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        y, state = self.inner(self.enter(x).tanh(), hx)
        return self.leave(y), state


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
    assert (without.args[8], with_gradients.args[8]) == (False, True)


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


@pytest.mark.parametrize("call", [half, autocast, packed, transformed, tangent])
def test_left_to_pytorch(call: Callable[..., Tensor], graphs: list[fx.GraphModule]) -> None:
    model, x = nn.GRU(I, H), random(T, B, I, dtype=torch.float32, grad=False)
    same([compiled(call, fullgraph=False)(model, x)], [call(model, x)], 1e-6)
    assert not recurrences(graphs)


def test_packed_data_as_torch_gru_takes_it(graphs: list[fx.GraphModule]) -> None:
    model = nn.GRU(I, H, 2).double()
    data: PackedSequence = pack_padded_sequence(random(T, B, I, grad=False), torch.tensor([5, 3, 3, 1]))

    def call(x: Tensor, state: Tensor) -> Any:
        return torch.gru(x, data.batch_sizes, state, model._flat_weights, True, 2, 0.0, False, False)

    inputs = [data.data.clone().requires_grad_(), random(2, B, H)]
    same(results(compiled(call), inputs, [*model.parameters()]), results(call, inputs, [*model.parameters()]))
    assert len(recurrences(graphs)) == 1


def test_bad_input_is_pytorchs_error() -> None:
    model = nn.GRU(I, H)
    fast = compiled(model, fullgraph=False)
    for x in (torch.zeros(T, B, I + 1), torch.zeros(T, B, I, dtype=torch.float64), torch.zeros(T)):
        with pytest.raises(Exception) as expected:  # noqa: PT011
            model(x)
        with pytest.raises(expected.type):
            fast(x)


# What others see


def seen_by(backend: str, model: nn.Module) -> Any:
    """Graphs and graph breaks of a backend that is not ours."""
    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounterWithBackend(backend)
    output = leaves(torch.compile(model, backend=counter)(torch.ones(T, B, I)))[0]
    output.sum().backward()
    return [str(graph.graph) for graph in counter.graphs], counter.op_count, dict(counters["graph_break"]), output


@pytest.mark.parametrize("allow_rnn", [False, True])
@pytest.mark.parametrize("make", [lambda: Within(nn.GRU(I, H)), lambda: nn.LSTM(I, H)])
def test_other_backends_see_what_they_saw(
    make: Callable[[], nn.Module], allow_rnn: bool, monkeypatch: pytest.MonkeyPatch, graphs: list[fx.GraphModule]
) -> None:
    model = make()
    with torch._dynamo.config.patch(allow_rnn=allow_rnn):
        with monkeypatch.context() as bare:  # Dynamo as it is without this backend
            bare.setattr(_backend.VariableBuilder, "wrap_module", _backend.VariableBuilder.wrap_module.__wrapped__)
            handlers = _backend.TorchInGraphFunctionVariable._get_handlers()
            for kind in _backend.KINDS:
                bare.delitem(handlers, getattr(torch, kind))
            before = [seen_by(backend, model) for backend in ("eager", "inductor")]
        compiled(model)(torch.ones(T, B, I))
        after = [seen_by(backend, model) for backend in ("eager", "inductor")]
    for (*left, output), (*right, later) in zip(before, after, strict=True):
        assert left == right
        assert torch.equal(output, later)
    assert len(recurrences(graphs)) == 1


def test_nothing_else_in_the_process_changes() -> None:
    model = nn.GRU(I, H)
    compiled(model)(torch.ones(T, B, I))
    assert not torch._dynamo.config.allow_rnn
    assert "gru" not in vars(torch._VF)
    torch.jit.script(model)
    assert "gru" in str(torch.export.export(model, (torch.ones(T, B, I),)).graph)


def test_a_thread_of_its_own(graphs: list[fx.GraphModule]) -> None:
    fast = compiled(Within(nn.GRU(I, H)))
    thread = threading.Thread(target=fast, args=(torch.ones(T, B, I),))
    thread.start()
    thread.join()
    assert len(recurrences(graphs)) == 1


# Options


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"strategies": "auto"}, ("strategies", "strategy", "fallback")),
        ({"strategy": "magic"}, ("magic", "auto", "sequential")),
        ({"fallback": "tvm"}, ("tvm", "inductor", "eager")),
    ],
)
def test_unknown_options_list_the_known(options: dict[str, str], names: tuple[str, ...]) -> None:
    with pytest.raises(StrategyError) as caught:
        torch.compile(nn.GRU(I, H), backend="bppsa", options=options)(torch.ones(T, B, I))
    assert all(name in str(caught.value) for name in names)


def test_mode_is_no_option() -> None:
    with pytest.raises(StrategyError, match="mode"):
        torch.compile(nn.Linear(2, 2), backend="bppsa", mode="max-autotune")(torch.ones(2))


def test_strategy_reaches_the_op(graphs: list[fx.GraphModule]) -> None:
    options = {"strategy": "sequential", "fallback": "eager"}
    torch.compile(nn.GRU(I, H), backend="bppsa", options=options)(torch.ones(T, B, I))
    assert recurrences(graphs)[0].kwargs == {"strategy": "sequential"}


# scan


class Looped(nn.Module):
    """A recurrence over a cell of its own, with parameters, a closed-over tensor, and the carry among the outputs."""

    def __init__(self, scan: Callable[..., Any], **how: bool) -> None:
        super().__init__()
        self.scan, self.how = scan, how
        self.cell, self.gain = nn.GRUCell(I, H), nn.Parameter(torch.randn(H))

    def forward(self, x: Tensor, h: Tensor) -> Any:
        scale = x.mean()

        def cell(h: Tensor, x: dict[str, Tensor]) -> tuple[Tensor, Any]:
            h = self.cell(x["x"] * scale, h)
            return h.clone(), (h.clone(), h * self.gain)

        return self.scan(cell, h * 2, {"x": x + 1}, **self.how)


def by_hand(cell: Callable[..., Any], carry: Any, xs: Any, reverse: bool = False) -> Any:
    ys: list[Any] = []
    order = range(len(xs["x"]))
    for t in reversed(order) if reverse else order:
        carry, y = cell(carry, {"x": xs["x"][t]})
        ys.insert(0 if reverse else len(ys), y)
    return carry, tuple(torch.stack(column) for column in zip(*ys, strict=True))


@pytest.mark.parametrize("scan", [torch_scan, bppsa.scan])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("fallback", ["eager", "inductor"])
def test_scan_becomes_one_op(scan: Any, reverse: bool, fallback: str, graphs: list[fx.GraphModule]) -> None:
    model = Looped(scan, reverse=reverse).double()
    fast = compiled(model, fallback)
    for steps in (5, 9, 7):
        inputs = [random(steps, B, I), random(B, H)]
        got = results(fast, inputs, [*model.parameters()])
        model.scan = by_hand
        expected = results(model, inputs, [*model.parameters()])
        model.scan = scan
        same(got, expected)
    assert len(graphs) == 2
    assert [len(nodes(graph, torch.ops.bppsa.scan)) for graph in graphs] == [1, 1]
    assert not any(nodes(graph, torch.ops.higher_order.scan) for graph in graphs)


def branches(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    h = h + x if x.sum().item() > 0 else h - x
    return h, h


def in_place(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    seen = torch.zeros_like(h)
    seen += h + x
    return seen, seen


@pytest.mark.parametrize("cell", [branches, in_place])
def test_any_cell_runs(cell: Callable[..., Any]) -> None:
    def call(x: Tensor, h: Tensor) -> Any:
        return bppsa.scan(cell, h, x * 2)

    inputs = [random(T, B), random(B)]
    same(results(compiled(call, fullgraph=False), inputs, []), results(call, inputs, []))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_scan_under_another_backend_runs_outside(backend: str) -> None:
    model = Looped(bppsa.scan).double()
    inputs = [random(T, B, I), random(B, H)]
    fast = torch.compile(model, backend=backend)
    same(results(fast, inputs, [*model.parameters()]), results(model, inputs, [*model.parameters()]))
    assert any("bppsa.scan" in reason for reason in counters["graph_break"])


def test_scan_under_a_transform_runs_outside(graphs: list[fx.GraphModule]) -> None:
    def loss(x: Tensor) -> Tensor:
        return bppsa.scan(lambda h, x: ((h * x).sin(), h), torch.ones(B, dtype=x.dtype), x)[1].sum()

    x = random(T, B, grad=False)
    gradient = torch.func.grad(loss)
    same([compiled(lambda x: gradient(x) * 1, fullgraph=False)(x)], [gradient(x)])
    assert not any(nodes(graph, torch.ops.bppsa.scan) for graph in graphs)
