"""Gradients as autograd and its tools ask for them: checked by differences, twice, through hooks, again, in part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

import bppsa.frontend.dynamo.ops  # noqa: F401  defines torch.ops.bppsa
from tests.breadth import diagonal
from tests.recurrent.support import (
    KINDS,
    MANY,
    B,
    H,
    I,
    T,
    compiled,
    leaves,
    random,
    results,
    same,
    states,
    sweeps,
    weighted,
)

SMALL = {"num_layers": 2, "bidirectional": True}


def function(model: nn.RNNBase, hx: Any) -> tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]:
    """All outputs of `model` as a function of input, states and weights, and where to evaluate it."""
    tensors = [random(4, MANY, 3), *leaves(hx), *model.parameters()]
    names, count = [name for name, _ in model.named_parameters()], 1 + len(leaves(hx))

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        x, *rest = tensors
        given = rest[: count - 1] if len(rest[: count - 1]) > 1 else rest[0]
        weights = dict(zip(names, rest[count - 1 :], strict=True))
        return tuple(leaves(torch.func.functional_call(model, weights, (x, given))))

    return run, tensors


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind: str) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](3, H, **SMALL).double()
    run, tensors = function(compiled(model), states(model, MANY))
    with sweeps() as ran:
        assert torch.autograd.gradcheck(run, tensors, fast_mode=True)
    assert "backward" in ran


@pytest.mark.parametrize("kind", KINDS)
def test_gradgradcheck(kind: str) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](3, H).double()
    assert torch.autograd.gradgradcheck(*function(compiled(model), states(model, MANY)), fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_many_gradients_at_once(kind: str) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](3, H).double()
    x = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    found, expected = (
        torch.autograd.functional.jacobian(lambda x, m=m: m(x)[0], x, vectorize=True) for m in (compiled(model), model)
    )
    torch.testing.assert_close(found, expected)


def squared_gradients(model: Any, x: Tensor, wanted: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of a loss that is made of gradients; a dropout mask must be the first pass's."""
    torch.manual_seed(3)
    first = torch.autograd.grad(weighted(leaves(model(x))), wanted, create_graph=True)
    penalty = sum(g.square().sum() for g in first)
    return [*first, *torch.autograd.grad(penalty, wanted)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [{}, {**SMALL, "dropout": 0.5}, {"batch_first": True, "bias": False}], ids=str)
def test_double_backward(kind: str, flags: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x = KINDS[kind](I, H, **flags).double(), random(B, T, I)
    wanted = [x, *model.parameters()]
    with sweeps() as ran:
        got = squared_gradients(compiled(model), x, wanted)
    assert "forward" in ran
    same(got, squared_gradients(model, x, wanted))


@pytest.mark.parametrize("kind", KINDS)
def test_double_backward_of_packed_sequences(kind: str) -> None:
    torch.manual_seed(0)
    model, x = KINDS[kind](I, H, **SMALL).double(), random(T, B, I)
    wanted = [x, *model.parameters()]

    def packed(module: Any) -> Callable[[Tensor], Any]:
        return lambda x: module(pack_padded_sequence(x, torch.tensor([3, T, 1]), enforce_sorted=False))

    same(squared_gradients(packed(compiled(model)), x, wanted), squared_gradients(packed(model), x, wanted))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [{}, {**SMALL, "dropout": 0.5}], ids=str)
def test_backward_again(kind: str, flags: dict[str, Any]) -> None:
    """retain_graph: the same gradients a second time; then the graph is freed, and PyTorch's error says so."""
    torch.manual_seed(0)
    model, x = KINDS[kind](I, H, **flags).double(), random(T, B, I)
    wanted = [x, *model.parameters()]
    loss = weighted(leaves(compiled(model)(x)))
    first, second = (torch.autograd.grad(loss, wanted, retain_graph=True) for _ in range(2))
    same(second, first, 0)
    same(torch.autograd.grad(loss, wanted), first, 0)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_backward_in_parts(kind: str) -> None:
    """First of one output, then of the others: sums of gradients, whatever was asked for first."""
    torch.manual_seed(0)
    model, x = KINDS[kind](I, H, 2).double(), random(T, B, I)
    grads = []
    for module in (compiled(model), model):
        y, final = module(x)
        model.zero_grad(set_to_none=True)
        y[:2].sum().backward(inputs=[model.weight_hh_l1], retain_graph=True)
        weighted(leaves(final)).backward(retain_graph=True)
        y.square().sum().backward(inputs=[*model.parameters()])
        grads.append([p.grad for p in model.parameters()] + [x.grad])
        x.grad = None
    same(*grads)


@pytest.mark.parametrize("kind", KINDS)
def test_backward_under_autocast_and_no_grad(kind: str) -> None:
    torch.manual_seed(0)
    model, x = KINDS[kind](I, H, 2), random(T, B, I, dtype=torch.float32)
    wanted = [x, *model.parameters()]
    ours = compiled(model)
    expected = torch.autograd.grad(weighted(leaves(ours(x))), wanted)
    loss = weighted(leaves(ours(x)))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        same(torch.autograd.grad(loss, wanted), expected, 0)


class Packed:
    """What went through saved_tensors_hooks, copied on the way."""

    def __init__(self) -> None:
        self.hooks = saved_tensors_hooks(self.pack, self.unpack)
        self.count = 0

    def pack(self, tensor: Tensor) -> list[Tensor]:
        self.count += 1
        return [tensor.detach().clone()]

    def unpack(self, kept: list[Tensor]) -> Tensor:
        return kept[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [{}, {**SMALL, "dropout": 0.5}], ids=str)
def test_saved_tensors_hooks(kind: str, flags: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x = KINDS[kind](I, H, **flags).double(), random(T, B, I)
    wanted, packed = [x, *model.parameters()], Packed()
    with packed.hooks:
        got = results(compiled(model), [x], wanted)
    assert packed.count
    same(got, results(model, [x], wanted))


@pytest.mark.parametrize("steps", [T, 2000], ids=["a program", "sweeps"])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_tensors_that_come_back_as_views(kind: str, steps: int) -> None:
    model, x = KINDS[kind](I, 48).double(), random(steps, B, I)
    wanted = [x, *model.parameters()]
    with saved_tensors_hooks(lambda t: torch.stack([t, -t], -1), lambda pair: pair[..., 0]):
        got = results(compiled(model), [x], wanted)
    same(got, results(model, [x], wanted))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(kind: str, reentrant: bool) -> None:
    torch.manual_seed(0)
    model, x = KINDS[kind](I, H, 2, dropout=0.5).double(), random(T, B, I)
    ours = compiled(model)

    def step(run: Callable[..., Any]) -> list[Tensor | None]:
        model.zero_grad(set_to_none=True)
        torch.manual_seed(1)
        given = x.detach().requires_grad_()
        outputs = run(given)
        weighted(outputs).backward()
        return [*outputs, given.grad, *(p.grad for p in model.parameters())]

    def checkpointed(x: Tensor) -> tuple[Tensor, ...]:
        return checkpoint(lambda x: tuple(leaves(ours(x))), x, use_reentrant=reentrant)

    with sweeps() as ran:
        got = step(checkpointed)
    assert ran == ["forward"] * 4 + ["backward"] * 2
    same(got, step(lambda x: leaves(model(x))))


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_on_tensors_and_nodes(kind: str) -> None:
    """A tensor hook may change a gradient on its way, at an output, the input or a weight."""
    torch.manual_seed(0)
    model, x = KINDS[kind](I, H).double(), random(T, B, I)
    found = []
    for module in (compiled(model), model):
        halved = x * 1
        halved.register_hook(lambda g: g / 2)
        handle = model.weight_hh_l0.register_hook(lambda g: 3 * g)
        y, final = module(halved)
        y.register_hook(lambda g: g + 1)
        outputs = [y, *leaves(final)]
        for out in outputs:
            out.retain_grad()
        found.append([*torch.autograd.grad(weighted(outputs), [x, *model.parameters(), *outputs])])
        handle.remove()
    same(*found)


def op_arguments(model: nn.RNNBase, masked: bool, grad: bool, strategy: str = "sequential") -> tuple[Any, ...]:
    """Of torch.ops.bppsa.recurrence, as the backend gives them."""
    dtype, width = model.weight_hh_l0.dtype, (model.proj_size or H) * (1 + model.bidirectional)
    masks = [2 * torch.randint(2, (T, B, width)).to(dtype) for _ in range(model.num_layers - 1)] if masked else []
    tensors = (
        random(T, B, I, dtype=dtype, grad=grad),
        leaves(states(model, B, grad=grad)),
        [*model.parameters()],
        masks,
    )
    flags = model.mode.lower(), model.num_layers, model.bidirectional, strategy, "sequential", 0
    return (*tensors, *flags, grad)


@pytest.mark.parametrize(("kind", "dtype"), diagonal(KINDS, [torch.float64, torch.bfloat16]))
def test_opcheck(kind: str, dtype: torch.dtype) -> None:
    """The op that torch.compile sees: schema, fake kernel, autograd registration, AOT dispatch with symbolic sizes."""
    torch.manual_seed(0)
    model = KINDS[kind](I, H, **SMALL).to(dtype)
    for masked in (False, True):
        found = torch.library.opcheck(torch.ops.bppsa.recurrence.default, op_arguments(model, masked, grad=True))
        assert set(found.values()) == {"SUCCESS"}


def test_opcheck_of_a_scan() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(I, H, **SMALL).double()
    arguments = op_arguments(model, masked=False, grad=True, strategy="chunked(length=2)")
    found = torch.library.opcheck(torch.ops.bppsa.recurrence.default, arguments)
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("kind", ["gru", "lstm-proj"])
def test_opcheck_of_inference(kind: str) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](I, H).double().requires_grad_(False)
    found = torch.library.opcheck(torch.ops.bppsa.recurrence.default, op_arguments(model, masked=False, grad=False))
    assert set(found.values()) == {"SUCCESS"}


def test_a_gradient_that_is_only_marked_as_negative() -> None:
    model, x = nn.GRU(3, H).double(), torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    marked = torch.randn(4, 2, H, dtype=torch.complex128).conj().imag
    assert marked.is_neg()
    found, expected = (torch.autograd.grad(m(x)[0], x, marked)[0] for m in (compiled(model), model))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_of_zeros_without_memory(kind: str) -> None:
    model, x = KINDS[kind](I, H).double(), random(T, B, I)
    y = compiled(model)(x)[0]
    zeros = torch._efficientzerotensor(y.shape, dtype=y.dtype)
    assert not torch.autograd.grad(y, x, zeros)[0].any()
