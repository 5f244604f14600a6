"""What cannot be cut is told with the line, what happens there and the mend, in words that name no graph."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import weight_norm

from bppsa import compile, partition
from bppsa.errors import ArgumentError, InputError, PartitionError, WorkerError
from bppsa.schedule import gpipe

Forward = Callable[[Any, Tensor], Any]


class Model(nn.Module):
    """With a forward of the test's."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("mean", torch.zeros(4))
        self.function, self.calls, self.seen = forward, 0, {}
        self.generator = torch.Generator()

    def forward(self, x: Tensor) -> Any:
        return self.third(self.second(self.function(self, self.first(x))))


@dataclass
class Pair:
    a: Tensor


def if_positive(self: Model, x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def if_gradient(self: Model, x: Tensor) -> Tensor:
    return x * 2 if x.requires_grad else x


def numpy(self: Model, x: Tensor) -> Tensor:
    return x - torch.from_numpy(x.detach().numpy())


def counts(self: Model, x: Tensor) -> Tensor:
    self.calls += 1
    return x


def remembers(self: Model, x: Tensor) -> Tensor:
    self.seen["x"] = x
    return x


def replaces_a_buffer(self: Model, x: Tensor) -> Tensor:
    self.mean = x.mean(0)
    return x - self.mean


def own_generator(self: Model, x: Tensor) -> Tensor:
    return x + torch.rand(4, generator=self.generator)


def differentiates(self: Model, x: Tensor) -> Tensor:
    return torch.autograd.grad(x.sum(), x, create_graph=True)[0]


def maps(self: Model, x: Tensor) -> Tensor:
    return torch.vmap(torch.tanh)(x)


CASES: tuple[tuple[Forward, str], ...] = (
    (if_positive, r"at .*return x \* 2 if x.sum\(\) > 0 else x: Python needs the value of a tensor .* torch.where"),
    (if_gradient, r"at .*if x.requires_grad else x: Python asks whether a gradient flows .* self.training"),
    (numpy, r"at .*torch.from_numpy.*: an activation is given to code that takes nothing but real tensors"),
    (maps, r"test_refusals.py:\d+: .*torch.vmap\(.*: torch.vmap, or another transform of torch.func, calls functions"),
    (counts, r"at .*self.calls \+= 1: the forward changes calls, .* keep state in buffers"),
    (remembers, r"at .*self.seen\[\"x\"\] = x: the forward changes seen, .* keep state in buffers"),
    (replaces_a_buffer, r"at .*self.mean = x.mean\(0\): the forward changes mean, .* in buffers, changed in place"),
    (own_generator, r"at .*torch.rand.*: .* a generator of the model's own.* leave generator= out"),
    (differentiates, r"at .*torch.autograd.grad.*: the forward differentiates"),
)


@pytest.mark.parametrize(("forward", "said"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_the_line_and_the_mend_are_told(forward: Forward, said: str) -> None:
    model = Model(forward)
    with pytest.raises(PartitionError, match=said) as error:
        partition(model, torch.randn(3, 4), 2)
    assert not re.search(r"Traced|proxy|Proxy|\bfx\b", str(error.value))
    assert (model.calls, model.seen) == (0, {})
    assert torch._C._functorch.peek_interpreter_stack() is None  # as a transform would leave it, taken apart


def test_an_argument_changed_in_place() -> None:
    class InPlace(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            x -= 0.5
            return super().forward(x)

    x = torch.randn(3, 4)
    before = x.clone()
    with pytest.raises(PartitionError, match=r"x -= 0.5: an argument is changed in place.* x.clone\(\)"):
        partition(nn.Sequential(InPlace(4, 4)), x, 1)
    assert torch.equal(x, before)


UNFIT = (
    (lambda: nn.Sequential(nn.LazyLinear(4)), r"0 \(LazyLinear\) has parameters without a shape yet; call the model"),
    (lambda: nn.Sequential(weight_norm(nn.Linear(4, 4))), r"0 \(Linear\) sets its weight anew .*parametrizations"),
    (lambda: nn.DataParallel(nn.Linear(4, 4)), r"the model \(DataParallel\) spreads .* \.module"),
    (lambda: torch.compile(nn.Linear(4, 4), backend="eager"), "was made by torch.compile; cut the model as it was"),
    (lambda: torch.jit.script(nn.Linear(4, 4)), "is TorchScript, which cannot be cut"),
)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(("make", "said"), UNFIT)
def test_parts_that_no_stage_can_hold(make: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(PartitionError, match=said):
        partition(make(), torch.randn(3, 4), 1)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("make", "said"), UNFIT[:2])
def test_parts_that_no_stage_can_hold_by_hand(make: Callable[[], nn.Module], said: str) -> None:
    model = make()
    with pytest.raises(PartitionError, match=said):
        partition(model, torch.randn(3, 4), [model[0]])


def test_a_tensor_on_the_meta_device_that_nobody_can_fill() -> None:
    def masked(self: Model, x: Tensor) -> Tensor:
        return x * self.mask

    with torch.device("meta"):
        model = Model(masked)
        model.mask = torch.ones(4)
    with pytest.raises(PartitionError, match=r"return x \* self.mask: .* meta device .* self.register_buffer"):
        partition(model, torch.randn(3, 4), 2)
    mask = model.mask
    del model.mask
    model.register_buffer("mask", mask)
    assert len(partition(model, torch.randn(3, 4), 2)) == 2


def test_classes_in_which_no_tensors_are_found() -> None:
    with pytest.raises(PartitionError, match=r"returns a Pair.* torch.export.register_dataclass\(Pair\)"):
        partition(nn.Sequential(nn.Linear(4, 4), Wrap()), torch.randn(3, 4), 1)
    with pytest.raises(ArgumentError, match=r"argument input is a Pair.* torch.export.register_dataclass\(Pair\)"):
        partition(nn.Linear(4, 4), Pair(torch.randn(3, 4)), 1)


class Wrap(nn.Module):
    def forward(self, x: Tensor) -> Pair:
        return Pair(x)


def test_a_loop_over_rows() -> None:
    def each_row(self: Model, x: Tensor) -> Tensor:
        return torch.stack([row * 2 for row in x])

    compiled = compile(Model(each_row), schedule=gpipe(), stages=2, microbatches=2)
    with pytest.raises(WorkerError, match=r"for row in x\]\): x.shape\[0\] is 2, and the model was cut for 4 alone"):
        compiled(torch.randn(4, 4))


def test_stages_that_in_place_ops_forbid() -> None:
    def stream(self: Model, x: Tensor) -> Tensor:
        h = x.clone()
        for layer in (self.first, self.second):
            h += torch.tanh(layer(h))
        return h

    with pytest.raises(PartitionError, match=r"there can be 1 to \d+; \d+ ops stay together .* h \+= torch.tanh"):
        partition(Model(stream), torch.randn(3, 4), 8)


def test_outputs_that_differ_between_microbatches() -> None:
    class Rows(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), x.shape[0]

    compiled = compile(nn.Sequential(Rows(4, 4)), schedule=gpipe(), stages=1, microbatches=2)
    with torch.no_grad(), pytest.raises(InputError, match="returns 2, 1 for the micro-batches"):
        compiled(torch.randn(3, 4))


def test_a_mode_in_which_the_model_cannot_be_cut() -> None:
    class Decides(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if not self.training and bool(x.sum() > 0) else super().forward(x)

    compiled = compile(nn.Sequential(Decides(4, 4)), schedule=gpipe(), stages=1, microbatches=1)
    compiled(torch.randn(3, 4))
    compiled.eval()
    with pytest.raises(PartitionError, match=r"x.sum\(\) > 0.*Python needs the value of a tensor"):
        compiled(torch.randn(3, 4))
