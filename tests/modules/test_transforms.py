"""Whatever transforms, traces or watches a call is recognised before dispatch and sees PyTorch's own path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import bppsa
from bppsa.frontend.rnn import recurrent
from tests.modules.conftest import Taken
from tests.modules.models import KINDS, equal, fast


def output(model: nn.Module) -> Any:
    return lambda x: model(x)[0]


def through_grad(model: nn.Module, x: Tensor) -> Any:
    weights = dict(model.named_parameters())
    return grad(lambda w: functional_call(model, w, (x,))[0].sin().sum())(weights)


def through_dual(model: nn.Module, x: Tensor) -> Any:
    with forward_ad.dual_level():
        y, _ = model(forward_ad.make_dual(x, torch.ones_like(x)))
        return forward_ad.unpack_dual(y).tangent


TRANSFORMS: dict[str, Any] = {
    "grad": through_grad,
    "jvp": lambda model, x: jvp(output(model), (x,), (torch.ones_like(x),)),
    "vmap": lambda model, x: vmap(output(model), in_dims=1)(x),
    "jacrev": lambda model, x: jacrev(output(model))(x),
    "jacfwd": lambda model, x: jacfwd(output(model))(x),
    "vmap over grad": lambda model, x: vmap(grad(lambda x: model(x)[0].sum()), in_dims=1)(x),
    "forward AD": through_dual,
    "functional jvp": lambda model, x: torch.autograd.functional.jacobian(
        output(model), x, strategy="forward-mode", vectorize=True
    ),
}


def leaves(result: Any) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(result)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_give_pytorch_s_numbers_or_its_error(kind: Any, name: str, taken: list[Taken]) -> None:
    model, x, transform = kind(3, 4).double(), torch.randn(3, 2, 3, dtype=torch.float64), TRANSFORMS[name]
    ours = fast(model)
    try:
        expected = transform(model, x)
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises(type(error)):
            transform(ours, x)
    else:
        for a, b in zip(leaves(transform(ours, x)), leaves(expected), strict=True):
            assert torch.equal(a, b)
    assert not taken


class SeesFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class SeesOps(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [SeesFunctions, SeesOps])
def test_modes_see_every_op(mode: Any, taken: list[Taken]) -> None:
    model, x = nn.GRU(3, 4), torch.randn(3, 2, 3)
    with mode() as theirs:
        model(x)
    with mode() as ours:
        fast(model)(x)
    missing = set(theirs.seen) - set(ours.seen)
    assert not missing
    assert not taken


def test_flops_are_counted() -> None:
    counts = []
    model, x = nn.GRU(3, 4), torch.randn(3, 2, 3)
    for module in (model, fast(model)):
        with FlopCounterMode(display=False) as counter:
            module(x)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


class Marked(Tensor):
    """A tensor subclass."""


def test_tensor_subclasses_stay_what_they_are(taken: list[Taken]) -> None:
    ours = fast(nn.GRU(3, 4))
    y, _ = ours(torch.randn(3, 2, 3).as_subclass(Marked))
    assert type(y) is Marked
    assert not taken


def test_meta_models(taken: list[Taken]) -> None:
    ours = fast(nn.GRU(3, 4, device="meta"))
    assert ours(torch.zeros(3, 2, 3, device="meta"))[0].shape == (3, 2, 4)
    assert not taken


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore::UserWarning")
def test_script_and_trace(taken: list[Taken]) -> None:
    model, x = nn.Sequential(nn.GRU(3, 4)), torch.randn(3, 2, 3)
    ours = fast(model)
    assert equal(torch.jit.script(ours)(x), model(x))
    assert equal(torch.jit.trace(ours, (x,), check_trace=False)(x), model(x))
    assert not taken


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore::UserWarning")
@pytest.mark.parametrize("steps", [1, 12])
def test_a_first_short_call_may_be_transformed_or_watched(steps: int) -> None:
    """What is chosen by the size is decided in a later call."""
    for kind, hidden in ((nn.LSTM, 40 + steps), (nn.GRU, 60 + steps)):  # of widths that no other test has
        model, x = kind(3, hidden), torch.randn(steps, 2, 3)
        ours = bppsa.compile(model)
        gradients = [grad(lambda x, call=call: call(x)[0].square().sum())(x) for call in (ours, model)]
        torch.testing.assert_close(*gradients)
        assert equal(torch.jit.trace(ours, (x,), check_trace=False)(x), model(x))


def test_fx_sees_a_leaf() -> None:
    model = nn.Sequential(nn.GRU(3, 4))
    graphs = [[(node.op, node.target) for node in torch.fx.symbolic_trace(m).graph.nodes] for m in (model, fast(model))]
    assert graphs[0] == graphs[1]


class Between(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x.sin())[0].cos()


def test_dynamo_traces_nothing_of_ours(taken: list[Taken], monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = recurrent.run

    def inner(x: Tensor) -> Tensor:  # Dynamo would take this frame, which holds no module
        return x * 1

    def run(module: Any, x: Tensor, *rest: Any) -> Any:
        return stand_in(module, inner(x), *rest)

    monkeypatch.setattr(recurrent, "run", run)
    model, x = Between(), torch.randn(3, 2, 3)
    graphs: dict[str, list[str]] = {"ours": [], "theirs": []}
    for name, module in (("theirs", model), ("ours", fast(model))):

        def backend(graph: Any, example_inputs: Any, seen: list[str] = graphs[name]) -> Any:
            seen.append(str(graph.graph))
            return graph.forward

        torch._dynamo.reset()
        assert torch.equal(torch.compile(module, backend=backend)(x), model(x))
    assert graphs["ours"] == graphs["theirs"]
    assert len(taken) == 1


@pytest.mark.parametrize("whole", [nn.GRU(3, 4), nn.Sequential(nn.GRU(3, 4))], ids=["root", "child"])
def test_dynamo_with_allow_rnn_sees_pytorch_s_op(whole: nn.Module, taken: list[Taken]) -> None:
    torch._dynamo.reset()
    model, x, graphs = whole, torch.randn(3, 2, 3), []

    def backend(graph: Any, example_inputs: Any) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    with torch._dynamo.config.patch(allow_rnn=True):
        got = torch.compile(fast(model), backend=backend, fullgraph=True)(x)
    assert equal(got, model(x))
    assert any("gru" in target for target in graphs[0])
    assert not taken
