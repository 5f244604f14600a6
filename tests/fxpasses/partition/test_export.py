"""What is taken for granted of torch.export: a new release of PyTorch that differs is noticed here."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import transformer

from bppsa import partition
from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.capture import intricate
from tests.fxpasses.partition.support import run


class Tripled(torch.autograd.Function):
    """Whose backward is not that of what it computes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 3


class Model(nn.Module):
    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(4, 4), nn.Linear(4, 4), forward

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.function(self, self.first(x)))


def patched() -> list[Any]:
    checks = torch.distributions.Distribution._validate_args
    return [torch.autograd.Function.__dict__["apply"], transformer._detect_is_causal_mask, checks]


def fails(self: Model, x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize("forward", [fails, lambda self, x: Tripled.apply(x)])
def test_pytorch_is_left_as_it_was(forward: Any) -> None:
    before = patched()
    names = set(globals())
    if forward is fails:
        with pytest.raises(PartitionError):
            partition(Model(forward), torch.randn(3, 4), 2)
    else:
        partition(Model(forward), torch.randn(3, 4), 2)
    assert patched() == before
    assert set(globals()) == names


def test_functions_of_other_threads_are_their_own() -> None:
    """While one thread exports, another differentiates."""
    found: list[Tensor] = []

    def elsewhere() -> None:
        x = torch.ones(2, requires_grad=True)
        Tripled.apply(x).sum().backward()
        assert x.grad is not None
        found.append(x.grad)

    def forward(self: Model, x: Tensor) -> Tensor:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return Tripled.apply(x)

    partition(Model(forward), torch.randn(3, 4), 2)
    assert len(found) > 1
    assert all(torch.equal(grad, torch.full((2,), 3.0)) for grad in found)


def test_regions_are_told_by_export() -> None:
    """The order of arguments of its higher-order ops."""

    def forward(self: Model, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ x.T
        return x + y + z.sum().float()

    model, x = Model(forward), torch.randn(3, 4)
    cut = partition(model, x, 1)
    code = cut.stages[0].module.code
    assert "enter(False)" in code
    assert "enter(True, ('cpu', True, torch.bfloat16))" in code
    torch.testing.assert_close(run(cut, x), model(x))


def test_the_line_of_what_was_decided_by_sizes_is_heard_of() -> None:
    """In export's log."""

    def forward(self: Model, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] * 3 > 10 else x

    cut = partition(Model(forward), torch.randn(5, 4), 1)
    with pytest.raises(PartitionError, match=r"test_export\.py:\d+: return x \* 2 if x\.shape\[0\] \* 3 > 10"):
        run(cut, torch.randn(2, 4))


class Outputs(nn.GRU):
    """A recurrent layer of the user's, which returns no states."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(input, hx)[0]


@pytest.mark.parametrize("hooked", [False, True])
def test_a_recurrent_layer_returns_what_its_class_and_hooks_make_of_it(hooked: bool) -> None:
    layer: nn.Module = nn.GRU(4, 4) if hooked else Outputs(4, 4)
    if hooked:
        layer.register_forward_hook(lambda module, args, output: output[0] * 2)
    model, x = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 4)), torch.randn(3, 5, 4)
    torch.testing.assert_close(run(partition(model, x, 2), x), model(x))


def flattened(self: Model, x: Tensor) -> Tensor:
    return (x.flatten(1) * 2).sum(1).view(-1, 1, 1) + x


def test_of_intricate_sizes_only_the_rows_are_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intricate, "MOST", 0)
    model = Model(flattened)
    cut = partition(model, torch.randn(5, 3, 4), 1)
    x = torch.randn(7, 3, 4)
    torch.testing.assert_close(run(cut, x), model(x))
    with pytest.raises(PartitionError, match=r"x\.shape\[1\] is 6, and the model was cut for 3 alone"):
        run(cut, torch.randn(5, 6, 4))
