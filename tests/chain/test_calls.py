"""What people do with a feed-forward model: calls that PyTorch runs, gradients of gradients, changes, copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import bppsa
from tests.chain.test_exact import gradients
from tests.chain.zoo import mlp


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 5, dtype=torch.float64, requires_grad=True)


def net() -> nn.Module:
    torch.manual_seed(0)
    return mlp(nn.Tanh, 3).double()


def close(a: Any, b: Any) -> None:
    """But for rounding: what is zero by mathematics (a bias before batch norm) has nothing else."""
    assert all((p - q).norm() <= 1e-11 * q.norm() + 1e-14 for p, q in zip(a, b, strict=True))


def same(fast: nn.Module, model: nn.Module, x: Tensor) -> str:
    """That both give the same; how the fast one's backward ran."""
    y, expected = gradients(model, x)
    found, got = gradients(fast, x)
    assert torch.equal(found, y)
    close(got, expected)
    (decision,) = fast.report.decisions
    return decision.strategy


# ---- calls that PyTorch runs


def hook(fast: nn.Module, x: Tensor) -> Tensor:
    fast[1].register_forward_hook(lambda module, args, output: output * 2)
    return fast(x)


def without_gradients(fast: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return fast(x)


def frozen(fast: nn.Module, x: Tensor) -> Tensor:
    return fast.requires_grad_(False)(x.detach())


def autocast(fast: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu"):
        return fast.float()(x.float())


def in_checkpoint(fast: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(fast, x, use_reentrant=False)


def vmap(fast: nn.Module, x: Tensor) -> Tensor:
    return torch.func.vmap(fast)(x)


def jvp(fast: nn.Module, x: Tensor) -> Tensor:
    return torch.func.jvp(fast, (x,), (x,))[1]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (hook, "1 has hooks"),
        (without_gradients, "only the forward"),
        (frozen, "nothing requires a gradient"),
        (autocast, "autocast"),
        (in_checkpoint, "checkpoint"),
        (vmap, "functorch"),
        (jvp, "functorch"),
    ],
)
def test_pytorch_runs_it_and_the_report_says_why(call: Callable[..., Tensor], said: str, x: Tensor) -> None:
    model = net()
    fast = bppsa.compile(model, strategy="blelloch")
    fast(x)  # what was planned for an ordinary call is not used
    expected = call(copy.deepcopy(model), x)
    assert torch.equal(call(fast, x), expected)
    (decision,) = fast.report.decisions
    assert decision.strategy == "pytorch"
    assert said in decision.reason


class Custom(nn.Module):
    def __init__(self, forward: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.body, self.twice, self.seen = net(), False, 0
        self.function = forward

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def branch(self: Any, x: Tensor) -> Tensor:
    return self.body(x) if x.sum() > 0 else self.body(-x)


def counts(self: Any, x: Tensor) -> Tensor:
    self.seen += 1
    return self.body(x)


def remembers(self: Any, x: Tensor) -> Tensor:
    self.seen = self.body[0](x)
    return self.body[1:](self.seen)


@pytest.mark.parametrize(
    ("forward", "said"), [(branch, "the value of a tensor"), (counts, "an attribute"), (remembers, "an attribute")]
)
def test_what_cannot_be_recorded_runs_as_it_is(forward: Any, said: str, x: Tensor) -> None:
    model = Custom(forward)
    fast = bppsa.compile(model, strategy="blelloch")
    for _ in range(2):
        assert same(fast, model, x) == "pytorch"
        assert said in fast.report.decisions[0].reason
    assert isinstance(fast.seen, Tensor) or fast.seen == model.seen


def test_a_scan_inside_is_left_its_own_strategy(x: Tensor) -> None:
    model = Custom(lambda self, x: bppsa.scan(lambda h, x: (0.5 * h + x, h), x.new_zeros(1, 5), x[:, None])[1])
    fast = bppsa.compile(model, strategy="blelloch")
    fast(x)
    assert [(d.kind, d.strategy) for d in fast.report.decisions] == [("scan", "blelloch")]


# ---- what a chain may look like


def test_an_attribute_that_changes_is_noticed(x: Tensor) -> None:
    model = Custom(lambda self, x: self.body(2 * x if self.twice else x))
    fast = bppsa.compile(model, strategy="blelloch")
    for twice in (False, True, False):
        model.twice = fast.twice = twice
        assert same(fast, model, x) == "blelloch"


class Scaled(nn.Module):
    """Reads an argument that is no tensor."""

    def __init__(self, read: Callable[[Tensor, Any], Tensor]) -> None:
        super().__init__()
        self.net, self.read = net(), read

    def forward(self, x: Tensor, given: Any) -> Tensor:
        return self.read(self.net(x), given)


class Setting:
    factor = 1.0


@pytest.mark.parametrize("pair", [(1, True), (True, 1)], ids=str)
def test_arguments_that_are_equal_and_not_the_same(pair: tuple[Any, Any], x: Tensor) -> None:
    model = Scaled(lambda y, which: y[:, which] * 2)
    fast = bppsa.compile(model, strategy="blelloch")
    for which in pair:
        assert torch.equal(fast(x, which), model(x, which))


def test_an_argument_that_changes(x: Tensor) -> None:
    model, setting = Scaled(lambda y, setting: y * setting.factor), Setting()
    fast = bppsa.compile(model, strategy="blelloch")
    for setting.factor in (2.0, 3.0):
        assert torch.equal(fast(x, setting), model(x, setting))
    assert "an argument that cannot be compared" in str(fast.report)


@pytest.mark.parametrize("write", ["copy", "replace"])
def test_a_mask_of_prune_that_changes_without_notice(write: str, x: Tensor) -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    prune.random_unstructured(model[2], "weight", 0.5)
    fast = bppsa.compile(model, strategy="blelloch")
    for _ in range(3):
        assert same(fast, model, x) == "blelloch"
        mask = torch.rand(6, 6).gt(0.5).double()
        for buffer in (model[2].weight_mask, fast[2].weight_mask):
            if write == "copy":
                buffer.data.copy_(mask)
            else:
                buffer.data = mask.clone()


def test_weights_may_be_reused(x: Tensor) -> None:
    layer = nn.Linear(5, 5).double()
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.ReLU(), nn.Linear(5, 5).double(), nn.Tanh(), layer)
    assert same(bppsa.compile(model, strategy="blelloch"), model, x) == "blelloch"


class Several(nn.Module):
    """Two inputs that join, three outputs of which one has no gradient, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.body, self.heads = nn.Linear(5, 5), net(), nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 4)])
        self.double()

    def forward(self, x: Tensor, *, other: Tensor) -> Any:
        y = self.body(torch.tanh(self.left(x)) + other)
        return {"a": self.heads[0](y), "b": (self.heads[1](y), y.argmax(1)), "n": 3}


def test_several_inputs_and_outputs(x: Tensor) -> None:
    model, other = Several(), torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    fast = bppsa.compile(model, strategy="blelloch")
    found = []
    for m in (model, fast):
        result = m(x, other=other)
        loss = result["a"].square().sum() + result["b"][0].tanh().sum()
        found.append((result, torch.autograd.grad(loss, [x, other, *m.parameters()])))
    (expected, theirs), (result, ours) = found
    assert torch.equal(result["b"][1], expected["b"][1])
    assert not result["b"][1].requires_grad
    assert result["n"] == 3
    close(ours, theirs)
    assert fast.report.decisions[0].strategy == "blelloch"
    only_a = [torch.autograd.grad(m(x, other=other)["a"].sum(), [x, m.heads[0].weight]) for m in (model, fast)]
    close(*only_a)


def test_tokens_are_embedded_before_the_chain() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 5), nn.Flatten(), nn.Linear(10, 5), net()).double()
    tokens = torch.tensor([[1, 2], [3, 3], [0, 6]])
    fast = bppsa.compile(model, strategy="blelloch")
    got, expected = (torch.autograd.grad(m(tokens).square().sum(), list(m.parameters())) for m in (fast, model))
    close(got, expected)
    assert fast.report.decisions[0].strategy == "blelloch"


def test_a_mask_made_from_the_input_ties_nothing_together(x: Tensor) -> None:
    model = Custom(lambda self, x: torch.where(x[:, :3] > 0, self.body(x), 0.0))
    fast = bppsa.compile(model, strategy="blelloch")
    assert same(fast, model, x) == "blelloch"
    assert fast.report.decisions[0].numbers["stages"] == 4


def test_a_product_out_of_range_that_no_cotangent_meets() -> None:
    """Back-propagation never forms it, so one by one is what the scan falls back to."""
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(40))).double()
    with torch.no_grad():
        for layer in model:
            layer.weight.copy_(torch.diag(torch.tensor([1e18, 1.0])))
    found = []
    for m in (model, bppsa.compile(model, strategy="blelloch")):
        x = torch.tensor([[0.0, 1.5], [0.0, -2.0]], dtype=torch.float64, requires_grad=True)
        found.append(torch.autograd.grad(m(x)[:, 1].square().sum(), [x, *model.parameters()]))
    assert all(map(torch.equal, *found))


# ---- backward


@pytest.mark.parametrize("train", [True, False])
def test_gradients_of_gradients(train: bool, x: Tensor) -> None:
    model = nn.Sequential(net(), nn.Dropout(0.4), nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 2))
    model.double().train(train)
    fast = bppsa.compile(model, strategy="blelloch")
    found = []
    for m in (model, fast):
        torch.manual_seed(3)
        (g,) = torch.autograd.grad(m(x).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), [x, *model.parameters()], allow_unused=True))
        model[3].reset_running_stats()
    assert [g is None for g in found[0]] == [g is None for g in found[1]]
    close([g for g in found[1] if g is not None], [g for g in found[0] if g is not None])


def test_backward_twice_and_from_two_losses(x: Tensor) -> None:
    model = net()
    y = bppsa.compile(model, strategy="blelloch")(x)
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert torch.equal(*first, *torch.autograd.grad(y.sum(), x))
    with pytest.raises(RuntimeError):
        torch.autograd.grad(y.sum(), x)


def test_a_weight_changed_before_the_backward_is_an_error(x: Tensor) -> None:
    model = net()
    y = bppsa.compile(model, strategy="blelloch")(x)
    with torch.no_grad():
        model[2].weight.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        y.sum().backward()


def test_the_output_may_be_changed_in_place(x: Tensor) -> None:
    model = nn.Sequential(net(), nn.Tanh())
    fast = bppsa.compile(model, strategy="blelloch")
    expected = torch.autograd.grad((model(x) * 2).sum(), x)
    y = fast(x)
    y *= 2
    close(torch.autograd.grad(y.sum(), x), expected)


# ---- the model's life


def test_training_copying_and_pickling(x: Tensor) -> None:
    model = nn.Sequential(net(), nn.BatchNorm1d(3).double(), nn.Linear(3, 2).double())
    fast = bppsa.compile(model, strategy="blelloch")
    assert list(fast.state_dict()) == list(model.state_dict())
    assert all(p is q for p, q in zip(fast.parameters(), model.parameters(), strict=True))
    assert type(fast).__name__ == "Sequential"
    assert type(fast[0]) is nn.Sequential
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert same(other, copy.deepcopy(model), x) == "blelloch"
    reference = copy.deepcopy(model)
    for m in (fast, reference):
        optimizer = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
        for _ in range(5):
            optimizer.zero_grad()
            F.mse_loss(m(x.detach()), torch.ones(3, 2, dtype=torch.float64)).backward()
            optimizer.step()
    for ours, theirs in zip(fast.state_dict().values(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_in_dynamo_pytorch_runs_it(x: Tensor) -> None:
    model = net()
    compiled = torch.compile(bppsa.compile(model, strategy="blelloch"), backend="aot_eager")
    close(gradients(compiled, x)[1], gradients(model, x)[1])
