"""Recurrent models, their results with all gradients, and how results are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import bppsa
from bppsa.decisions import Decision
from bppsa.runtime.recurrent.programs.stack import StackPrograms
from bppsa.runtime.recurrent.sweep import Sweep

T, B, I, H = 6, 3, 5, 11  # noqa: E741
MANY = 9  # rows: of so many a sweep multiplies x with its weight itself
# The least of each is one layer of size `I -> H`; flags of nn.RNNBase may be added.
KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "rnn-tanh": nn.RNN,
    "rnn-relu": partial(nn.RNN, nonlinearity="relu"),
    "gru": nn.GRU,
    "lstm": nn.LSTM,
    "lstm-proj": partial(nn.LSTM, proj_size=4),
}


def compiled(model: nn.Module) -> Any:
    """With the sweeps also where the planner would leave a small call to PyTorch."""
    return bppsa.compile(model, strategy="sequential")


@contextmanager
def sweeps() -> Iterator[list[str]]:
    """The sweeps that run within the block, "forward" or "backward" each: was it us at all?"""
    ran: list[str] = []

    def spy(name: str) -> Any:
        original = getattr(Sweep, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            ran.append(name)
            return original(*args, **kwargs)

        return mock.patch.object(Sweep, name, method)

    def spy_programs(name: str) -> Any:
        original = getattr(StackPrograms, name)

        def method(self: StackPrograms, *args: Any, **kwargs: Any) -> Any:
            ran.extend([name] * len(self.stack.sweeps) * self.stack.directions)
            return original(self, *args, **kwargs)

        return mock.patch.object(StackPrograms, name, method)

    with spy("forward"), spy("backward"), spy_programs("forward"), spy_programs("backward"):
        yield ran


def random(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = True) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=grad)


def zero_states(model: nn.RNNBase, *batch: int) -> list[tuple[int, ...]]:
    """The shape of each state."""
    rows = model.num_layers * (1 + model.bidirectional)
    widths = [model.proj_size or model.hidden_size, model.hidden_size][: 1 + isinstance(model, nn.LSTM)]
    return [(rows, *batch, width) for width in widths]


def states(model: nn.RNNBase, *batch: int, grad: bool = True) -> Any:
    """As `model` takes them: of [L * D, *batch, n] each."""
    dtype = model.weight_hh_l0.dtype
    given = tuple(random(*shape, dtype=dtype, grad=grad) for shape in zero_states(model, *batch))
    return given if len(given) > 1 else given[0]


def decision(fast: nn.Module) -> Decision:
    """The only one."""
    (found,) = fast.report.decisions
    return found


def leaves(result: Any) -> list[Tensor]:
    """The tensors of a module's result; of a packed sequence only the data."""
    if isinstance(result, PackedSequence):
        return [result.data]
    if isinstance(result, Tensor):
        return [result]
    return [leaf for part in result for leaf in leaves(part)]


def cotangents(outputs: Sequence[Tensor], seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Random, the same whatever the dtype of the outputs; rounded to `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(out.shape, dtype=torch.float64, generator=generator) for out in outputs]
    return [g.to(dtype).to(out.dtype) for g, out in zip(drawn, outputs, strict=True)]


def weighted(outputs: Sequence[Tensor], seed: int = 0) -> Tensor:
    """A loss in which every element has a cotangent of its own."""
    return torch.stack([(out * g).sum() for out, g in zip(outputs, cotangents(outputs, seed), strict=True)]).sum()


def results(
    model: Callable[..., Any],
    arguments: Sequence[Any],
    wanted: Sequence[Tensor],
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor | None]:
    """All outputs of `model(*arguments)`, and the gradients to `wanted` of a loss that reads each of them; `dtype`:
    what the loss's coefficients are rounded to."""
    torch.manual_seed(seed)
    outputs = leaves(model(*arguments))
    return [*outputs, *torch.autograd.grad(outputs, wanted, cotangents(outputs, seed, dtype), allow_unused=True)]


def distance(got: Tensor, expected: Tensor) -> float:
    """Relative, in the 2-norm."""
    got, expected = got.detach().double(), expected.detach().double()
    difference = (got - expected).norm().item()
    return difference and difference / max(expected.norm().item(), torch.finfo(torch.float64).tiny)


def same(got: Sequence[Tensor | None], expected: Sequence[Tensor | None], tolerance: float = 1e-10) -> None:
    """Equal in float64: which are None, shape, dtype, and values to a relative norm of `tolerance` each."""
    assert [tensor is None for tensor in got] == [tensor is None for tensor in expected]
    for a, b in zip(got, expected, strict=True):
        if a is not None and b is not None:
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            assert distance(a, b) <= tolerance
