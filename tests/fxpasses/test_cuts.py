"""Where a graph is cut, and what the stages between two cuts are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa.common.chain import Chain
from bppsa.errors import Unsupported
from bppsa.fxpasses.network.cuts import cut
from bppsa.fxpasses.network.models import record_model


class Function(nn.Module):
    """Of x [B, 4], with two square weights and a buffer."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        self.v, self.w = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
        self.register_buffer("b", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.v, self.w, self.b)


def chain(function: Callable[..., Tensor]) -> Chain:
    model = Function(function)
    return cut(record_model(model.forward, model, (torch.randn(3, 4),), {}))


def series(x, v, w, b):
    return torch.tanh(x @ v) @ w


def residual(x, v, w, b):
    x = x + torch.tanh(x @ v) @ w
    return x * torch.sigmoid(x @ w)


def long_way_round(x, v, w, b):
    return x @ v + torch.tanh(x @ v @ w)


def from_weights(x, v, w, b):
    return torch.tanh(x @ (v * w)) @ (v * w).t()


def by_a_comparison(x, v, w, b):
    return torch.where(x > 0, torch.tanh(x @ v) @ w, 0.0)


def without_gradient(x, v, w, b):
    return torch.tanh(x @ v) @ w + (x @ w).detach()


def of_several(x, v, w, b):
    left, right = (x @ v).split(2, 1)
    return torch.cat([torch.tanh(left), right], 1) @ w


def across(x, v, w, b):
    y = torch.tanh(x @ v)
    return (y - y.mean(0)) @ w


def unknown(x, v, w, b):
    return torch.cumsum(x @ v, 1) @ w


def turned(x, v, w, b):
    return (torch.tanh(x @ v).t() @ x) @ w


@pytest.mark.parametrize(
    ("function", "structures", "without"),
    [
        (series, ["dense", "dense"], ""),
        (residual, ["composed", "composed"], ""),
        (long_way_round, ["composed"], ""),
        (from_weights, ["dense", "dense"], ""),
        (by_a_comparison, ["dense", "dense"], ""),
        (without_gradient, ["dense", "dense"], ""),
        (of_several, ["dense", "composed", "dense"], ""),
        (across, ["dense", "unknown", "dense"], "works across samples"),
        (unknown, ["dense", "unknown", "dense"], "aten.cumsum.default: no rule"),
        (turned, ["unknown", "dense"], ""),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_stages(function: Callable[..., Tensor], structures: list[str], without: str) -> None:
    found = chain(function)
    assert [stage.structure for stage in found.stages] == structures
    reasons = [str(stage.reason) for stage in found.stages if stage.reason is not None]
    assert len(reasons) == structures.count("unknown")
    assert all(without in reason for reason in reasons)
    for before, after in zip(found.stages, found.stages[1:], strict=False):
        assert before.end is after.start


def test_segments_end_at_stages_without_a_rule() -> None:
    stages = [len(segment) for segment in chain(lambda x, v, w, b: across(series(x, v, w, b), v, w, b)).segments]
    assert stages == [3, 1, 1]


def test_a_buffer_changes_when_the_graph_runs_and_not_before() -> None:
    def function(x: Tensor, v: Tensor, w: Tensor, b: Tensor) -> Tensor:
        b.add_(1)
        return torch.tanh(x @ v + b) @ w

    model = Function(function)
    recording = record_model(model.forward, model, (torch.randn(3, 4),), {})
    assert not model.b.any()
    assert any(node.target is torch.ops.aten.add_.Tensor for node in recording.graph.nodes)


def test_nodes_know_their_module_and_random_numbers_are_not_drawn() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"a": nn.Dropout(0.5)})["a"], nn.Linear(4, 2))
    x, before = torch.randn(3, 4), torch.get_rng_state()
    found = cut(record_model(model.forward, model, (x,), {}))
    assert torch.equal(before, torch.get_rng_state())
    assert [stage.path for stage in found.stages] == ["1", "2"]


def test_a_forward_that_leaves_something_behind_is_refused_and_undone() -> None:
    def function(x: Tensor, v: Tensor, w: Tensor, b: Tensor) -> Tensor:
        seen.append(x)
        model.last = x
        return F.relu(x @ v) @ w

    seen: list[Tensor] = []
    model = Function(function)
    with pytest.raises(Unsupported, match="attribute"):
        record_model(model.forward, model, (torch.randn(3, 4),), {})
    assert not hasattr(model, "last")
