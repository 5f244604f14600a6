"""Tensors changed in place between forward and backward: PyTorch's gradients or its error, never another number."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from bppsa.errors import InputError
from tests.recurrent.support import KINDS, B, H, I, T, compiled, leaves, random, same, states, sweeps, weighted

FLAGS: list[dict[str, Any]] = [{}, {"num_layers": 2}, {"num_layers": 2, "bidirectional": True, "dropout": 0.5}]

# What is done to one tensor between forward and backward.
CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "mul_": lambda t: t.mul_(2),
    "zero_": lambda t: t.zero_(),
    "a part": lambda t: t[0].add_(1),
    "through a view": lambda t: t.transpose(0, 1).sigmoid_(),
    "unseen": lambda t: unseen(t),
}


@torch.no_grad()
def unseen(tensor: Tensor) -> None:
    tensor.add_(1)


class Attempt:
    """One forward and backward pass of `module`, in which `change` is done to `which` tensor once the loss is there.

    `copied`: to a copy of it instead, which is what a program means that PyTorch lets pass.
    """

    def __init__(self, which: str, change: Callable[[Tensor], Any], flags: dict[str, Any], kind: str) -> None:
        torch.manual_seed(0)
        self.which, self.change = which, change
        self.model = KINDS[kind](I, H, **flags).double()
        self.x, self.hx = random(T, B, I), states(self.model, B)
        self.wanted = [self.x, *leaves(self.hx), *self.model.parameters()]

    def run(self, module: Any, copied: bool = False) -> list[Tensor | None]:
        torch.manual_seed(1)
        given = [t * 1 for t in leaves(self.hx)]  # not leaves: autograd forbids to change those
        x, weight = self.x * 1, self.model.weight_hh_l0
        y, final = module(x, tuple(given) if len(given) > 1 else given[0])
        named = {"y": y, "final": leaves(final)[-1], "x": x, "state": given[0], "weight": weight}
        loss = weighted([out * 3 for out in (y, *leaves(final))])
        target = named[self.which].clone() if copied else named[self.which]
        before = weight.detach().clone()
        result = self.change(target)
        if self.which in ("y", "final") and isinstance(result, Tensor):
            loss = loss + weighted([result], 5)  # the changed values are read too
        try:
            return [*torch.autograd.grad(loss, self.wanted)]
        finally:
            with torch.no_grad():
                weight.copy_(before)


def outcome(run: Callable[[], list[Tensor | None]]) -> list[Tensor | None] | None:
    """The gradients, or None for PyTorch's error."""
    try:
        return run()
    except RuntimeError as error:
        if not re.search("modified (by an )?in-?place", str(error)):
            raise
        return None


@pytest.mark.parametrize("kind", ["rnn-tanh", "gru", "lstm"])
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize(
    ("which", "change"), [*itertools.product(["y", "final", "x", "state"], CHANGES), ("weight", "unseen")]
)
def test_change_between_forward_and_backward(kind: str, flags: dict[str, Any], change: str, which: str) -> None:
    attempt = Attempt(which, CHANGES[change], flags, kind)
    meant = attempt.run(attempt.model, copied=True)
    theirs = outcome(lambda: attempt.run(attempt.model))
    with sweeps() as ran:
        got = outcome(lambda: attempt.run(compiled(attempt.model)))
    assert ran
    if theirs is not None:
        same(theirs, meant)
        assert got is not None
    if got is not None:
        same(got, meant)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_input_that_pytorch_copies_may_change(batch_first: bool, graph: bool) -> None:
    """PyTorch lays out what is not contiguous with time first, so that `x += rnn(x)[0]` has gradients."""
    torch.manual_seed(0)
    model = torch.nn.GRU(I, I, batch_first=batch_first).double()
    ours = torch.compile(model, backend="bppsa", options={"fallback": "eager"}) if graph else compiled(model)
    source = random(B, T, I) if batch_first else random(B, T, I).transpose(0, 1)
    found = []
    for module in (model, ours, ours):  # the second call of a size takes another way
        x = source * 1
        x += module(x)[0]
        found.append(torch.autograd.grad(weighted([x]), [*model.parameters()]))
    same(found[1], found[0])
    same(found[2], found[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_results_share_no_storage(kind: str, flags: dict[str, Any]) -> None:
    """Not with each other, not with what came in; also after one step, where y and h_n hold the same numbers."""
    model = KINDS[kind](I, I, **flags).double() if kind != "lstm-proj" else KINDS[kind](I, H, **flags).double()
    for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with context():
            x, hx = random(1, 1, I), states(model, 1)
            tensors = [x, *leaves(hx), *leaves(compiled(model)(x, hx))]
        assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)


def test_results_of_two_calls_share_no_storage() -> None:
    """Nor with work memory that a later call uses again."""
    model = KINDS["gru"](I, 64, num_layers=2)
    ours, x = compiled(model), random(200, 8, I, dtype=torch.float32)
    first = leaves(ours(x))
    kept = [t.detach().clone() for t in first]
    weighted(leaves(ours(-x))).backward()
    with torch.no_grad():
        ours(2 * x)
    same(first, kept, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_lengths_of_a_packed_sequence(kind: str, bidirectional: bool) -> None:
    """PyTorch reads them in the forward only; our backward finds its rows by them."""
    torch.manual_seed(0)
    model = KINDS[kind](I, H, bidirectional=bidirectional).double()
    x, found = random(T, B, I, grad=False), []
    for module in (compiled(model), model):
        packed = pack_padded_sequence(x, torch.tensor([T, 3, 2]))
        _, final = module(packed)
        packed.batch_sizes.fill_(1)
        found.append(torch.autograd.grad(weighted(leaves(final)), [*model.parameters()]))
    same(*found)


@pytest.mark.parametrize("kind", KINDS)
def test_optimizer_step_with_a_graph_kept(kind: str) -> None:
    """Weights move between two backward passes through one graph: PyTorch's error."""
    torch.manual_seed(0)
    model, x = KINDS[kind](I, H).double(), random(T, B, I)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = weighted(leaves(compiled(model)(x)))
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("steps", [T, 2000], ids=["a program", "sweeps"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["dtype", "shape"])
def test_data_of_another_form(kind: str, change: str, steps: int) -> None:
    """Replaced between forward and backward, as `module.float()` does: an error, no reading of what is not there."""
    model, x = KINDS[kind](I, 48).double(), random(steps, B, I)
    ours = compiled(model)
    with sweeps() as ran:
        loss = weighted(leaves(ours(x)))
    assert ran
    if change == "dtype":
        ours.float()
    else:
        ours.weight_ih_l0.data = ours.weight_ih_l0.data[:1].clone()
    with pytest.raises(InputError, match=r"that the backward reads became one of .*: its \.data was replaced"):
        loss.backward()


@pytest.mark.parametrize("steps", [8, 400])
@pytest.mark.parametrize("flat", [False, True])
def test_memory_that_was_freed_is_an_error(steps: int, flat: bool) -> None:
    """In short calls, which are one native call, and in long ones; also of weights that are views of one memory."""
    model: Any = compiled(torch.nn.GRU(32, 32))
    if flat:
        memory = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        parts = memory.split([p.numel() for p in model.parameters()])
        for p, part in zip(model.parameters(), parts, strict=True):
            p.data = part.view_as(p)
    loss = model(torch.randn(steps, 8, 32))[0].sum()
    model.weight_hh_l0.untyped_storage().resize_(0)
    with pytest.raises(InputError, match="was freed before"):
        loss.backward()
