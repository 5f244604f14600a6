"""What may happen to a scheduled model between its steps, and the modes that jobs run in."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

from bppsa import compile
from bppsa.errors import InputError, ScheduleError
from bppsa.schedule import Recipe, ddp, fslpp, gpipe, lpp, zero_bubble
from tests.breadth import alternate
from tests.workers import support, zoo

pytestmark = pytest.mark.usefixtures("in_float64")


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def scheduled(model: nn.Module, schedule: Recipe | None = None, **options: Any) -> Any:
    """Of a copy."""
    options = {"stages": 3, "microbatches": 3, "loss_fn": nn.MSELoss()} | options
    return compile(copy.deepcopy(model), schedule=schedule or gpipe(), **options)


def batch(rows: int = 7) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 4), torch.randn(rows, 3)


def serial(model: nn.Module, x: Tensor, target: Tensor, microbatches: int) -> Tensor:
    """A loop over micro-batches in one process."""
    total = x.new_zeros(())
    for part, of_part in zip(x.tensor_split(microbatches), target.tensor_split(microbatches), strict=True):
        loss = F.mse_loss(model(part), of_part) * (len(part) / len(x))
        loss.backward()
        total += loss.detach()
    return total


def check_step(model: nn.Module, compiled: Any) -> None:
    """Of a model that treats rows one by one."""
    dtype = next(model.parameters()).dtype
    x, target = (tensor.to(dtype) for tensor in batch())
    expected = F.mse_loss(model(x), target)
    expected.backward()
    tolerance = support.EXACT if dtype == torch.float64 else 1e-5
    support.close(compiled.step(x, target), expected.detach(), tolerance)
    support.same(support.gradients(compiled), support.gradients(model), tolerance)


@pytest.mark.parametrize("name", alternate(zoo.CASES))
def test_batch_norm_is_that_of_a_loop_over_micro_batches(name: str) -> None:
    case = zoo.CASES[name]
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3), nn.BatchNorm1d(3, momentum=None)
    )
    compiled = scheduled(model, **case.options)
    for _ in range(2):
        x, target = batch(9)
        support.close(compiled.step(x, target), serial(model, x, target, case.microbatches))
        support.same(support.gradients(compiled), support.gradients(model))
        support.close(dict(compiled.state_dict()), dict(model.state_dict()))
    x, _ = batch()
    with torch.no_grad():
        support.close(compiled.eval()(x), model.eval()(x))
    support.close(dict(compiled.state_dict()), dict(model.state_dict()))


class Average(nn.Module):
    """Keeps a running mean by itself, and uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        return self.last(torch.tanh(x - self.mean.clone()))


@pytest.mark.parametrize("schedule", [gpipe(), zero_bubble(), lpp(1, 2)])
def test_a_buffer_that_a_forward_changes_changes_in_the_order_of_micro_batches(schedule: Recipe) -> None:
    model = Average()
    compiled = scheduled(model, schedule)
    x, target = batch()
    support.close(compiled.step(x, target), serial(model, x, target, 3))
    support.same(support.gradients(compiled), support.gradients(model))
    support.close(compiled.mean, model.mean)


@pytest.mark.parametrize("schedule", [ddp(), lpp(2, 2), fslpp(2, 2)])
def test_where_several_workers_would_change_a_buffer_is_an_error(schedule: Recipe) -> None:
    with pytest.raises(ScheduleError, match=r"changes the buffer mean .* such as gpipe"):
        scheduled(Average(), schedule, example_inputs=batch()[0])


def test_autocast_is_that_of_the_caller() -> None:
    model = perceptron().float()
    compiled = scheduled(model, lpp(2, 2))
    x, target = (tensor.float() for tensor in batch())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, output = compiled.step(x, target, return_outputs=True)
        expected = serial(model, x, target, 3)
    assert output.dtype == torch.bfloat16
    support.close(loss, expected, 1e-6)
    support.same(support.gradients(compiled), support.gradients(model), 1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert compiled(x).dtype == torch.bfloat16
    assert compiled(x).dtype == torch.float32


def double(model: nn.Module) -> None:
    model.double()


def replace(model: nn.Module) -> None:
    """By other Parameters, as load_state_dict(assign=True) puts them there."""
    torch.manual_seed(5)
    model.load_state_dict({name: torch.randn_like(value) for name, value in model.state_dict().items()}, assign=True)


def load(model: nn.Module) -> None:
    torch.manual_seed(6)
    model.load_state_dict({name: torch.randn_like(value) for name, value in model.state_dict().items()})


def freeze(model: nn.Module) -> None:
    model.get_submodule("2").requires_grad_(False)


def unfreeze(model: nn.Module) -> None:
    model.requires_grad_(True)


def optimize(model: nn.Module) -> None:
    torch.optim.Adam((p for p in model.parameters() if p.grad is not None), 0.1).step()


def zero(model: nn.Module) -> None:
    model.zero_grad(set_to_none=False)


@pytest.mark.parametrize("changes", [(double,), (replace,), (load,), (freeze, unfreeze), (optimize, zero, optimize)])
@pytest.mark.parametrize("schedule", [gpipe(), fslpp(2, 2), zero_bubble()])
def test_what_changes_between_steps_counts(schedule: Recipe, changes: tuple[Callable[[Any], None], ...]) -> None:
    model = perceptron()
    if double in changes:
        model.float()
    compiled = scheduled(model, schedule)
    check_step(model, compiled)
    for change in changes:
        for net in (model, compiled):
            if change not in (optimize, zero):
                net.zero_grad()
            change(net)
        check_step(model, compiled)


class Looked(nn.Module):
    """Whose arguments tell nothing of its dtype, which its forward asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embedding(x)
        return self.out(torch.sin(y.to(y.dtype) / 3 + torch.ones(4, dtype=y.dtype) / 7))


def test_a_model_may_change_its_dtype() -> None:
    model, x = Looked().float(), torch.randint(7, (6,))
    compiled = scheduled(model, stages=2)
    for dtype in (torch.float32, torch.float64):
        model.to(dtype), compiled.to(dtype)
        target = torch.randn(6, 3, dtype=dtype)
        found, expected = compiled.step(x, target), F.mse_loss(model(x), target)
        assert found.dtype == dtype
        support.close(found, expected, support.EXACT if dtype == torch.float64 else 1e-6)
        for net in (model, compiled):
            net.zero_grad()


def test_gradients_are_added_to_in_place() -> None:
    """As where all gradients are views of one buffer."""
    compiled = scheduled(perceptron())
    compiled.step(*batch())
    held = [p.grad for p in compiled.parameters()]
    compiled.step(*batch())
    assert all(p.grad is grad for p, grad in zip(compiled.parameters(), held, strict=True))


@pytest.mark.parametrize("started", [False, True])
def test_a_deep_copy_is_a_model_of_its_own(started: bool) -> None:
    model = perceptron()
    compiled = scheduled(model)
    if started:
        check_step(model, compiled)
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        for p in twin.parameters():
            p.mul_(2)
    twin.eval()
    assert all(module.training for module in compiled.modules())
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(2)
    check_step(other, twin)
    check_step(model, compiled)


def test_pruning_comes_before_compiling() -> None:
    compiled = scheduled(perceptron())
    compiled.step(*batch())
    prune.random_unstructured(compiled.get_submodule("2"), "weight", 0.5)
    with pytest.raises(ScheduleError, match=r"2\.weight.* compile the model again"):
        compiled.step(*batch())


def test_weights_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    compiled = scheduled(model, stages=2)
    x = torch.randn(5, 4)
    compiled.step(x, x)
    compiled.load_state_dict(model.state_dict(), assign=True)  # which makes two of the one Parameter
    with pytest.raises(ScheduleError, match=r"2\.weight was the same Parameter as 0\.weight .* tie it"):
        compiled.step(x, x)


class Halves(nn.Module):
    """Dropout by functions, which ask the module that calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Half(4, 4), Half(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class Half(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(inputs, outputs), nn.Linear(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.dropout(self.a(x), 0.5, self.training))


def test_a_part_may_evaluate_while_the_rest_trains() -> None:
    model = Halves()
    compiled = scheduled(model)
    x, target = batch()
    drawn = compiled.step(x, target)
    for net in (model, compiled):
        net.encoder.eval()
        net.decoder.eval()
    assert drawn != compiled.step(x, target)
    for net in (model, compiled):
        net.zero_grad()
    check_step(model, compiled)
    compiled.encoder.train()
    assert not torch.equal(compiled.step(x, target), compiled.step(x, target))


def test_unused_parameters_have_no_gradient() -> None:
    compiled = compile(
        zoo.Drawn(zoo.Layers((("linear", 0),) * 4, (), 0)),
        schedule=ddp(),
        stages=3,
        microbatches=3,
        loss_fn=support.loss_of,
    )
    other = {"y": support.real(5, zoo.WIDTH), "power": 2.0}
    compiled.step(support.real(5, zoo.WIDTH), other, torch.randn(5))
    assert {name for name, p in compiled.named_parameters() if p.grad is None} == {
        *("unused.weight", "unused.bias", "shift")
    }


LOSSES = {
    "ignore_index": nn.CrossEntropyLoss(ignore_index=1),
    "class weights": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)),
    "smoothed": nn.CrossEntropyLoss(
        weight=torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64), ignore_index=0, label_smoothing=0.1
    ),
    "sum": nn.CrossEntropyLoss(reduction="sum", ignore_index=1),
    "function": F.cross_entropy,
    "partial": functools.partial(F.cross_entropy, ignore_index=2, reduction="mean"),
    "partial sum": functools.partial(F.cross_entropy, ignore_index=2, reduction="sum"),
    "negative log-likelihood": lambda y, t: F.nll_loss(y.log_softmax(-1), t),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("schedule", [gpipe(), ddp()])
def test_a_mean_over_classes_is_the_whole_batchs(name: str, schedule: Recipe) -> None:
    model, loss_fn = perceptron(), LOSSES[name]
    compiled = scheduled(model, schedule, loss_fn=loss_fn)
    x, target = torch.randn(8, 4), torch.tensor([0, 1, 1, 1, 2, 0, 2, 0])
    expected = loss_fn(model(x), target)
    expected.backward()
    support.close(compiled.step(x, target), expected.detach())
    support.same(support.gradients(compiled), support.gradients(model))


@pytest.mark.parametrize("loss_fn", [lambda y, t: y.prod(), lambda y, t: y.norm()])
def test_a_loss_that_is_no_mean_is_found_out(loss_fn: Callable[[Tensor, Tensor], Tensor]) -> None:
    compiled = scheduled(perceptron(), gpipe(), loss_fn=loss_fn)
    x, target = torch.randn(8, 4), torch.tensor([0, 1, 1, 1, 2, 0, 2, 0])
    with pytest.raises(ScheduleError, match="neither a mean nor a sum over rows"):
        compiled.step(x, target)


def test_loss_weight_says_what_a_micro_batch_counts() -> None:
    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        kept = target >= 0
        return (output.sum(-1) - target)[kept].square().mean()

    model = perceptron()
    compiled = scheduled(model, loss_fn=loss_fn, loss_weight=lambda target: float((target >= 0).sum()))
    x, target = torch.randn(8, 4), torch.tensor([-1.0, -1, -1, 1, 2, -1, 3, 4])
    expected = loss_fn(model(x), target)
    expected.backward()
    support.close(compiled.step(x, target), expected.detach())
    support.same(support.gradients(compiled), support.gradients(model))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
        """x: [B, 4, 4]; mask: [4, 4]; scale: [B, 1, 1]."""
        return self.b(mask @ self.a(x).tanh()) * scale


@pytest.mark.parametrize("rows", [4, 5])  # of the example: as many as the mask has, or not
def test_a_mask_with_as_many_rows_as_the_batch_is_not_cut(rows: int) -> None:
    model, mask = Masked(), torch.rand(4, 4, requires_grad=True)
    compiled = scheduled(model, stages=2, microbatches=4, example_inputs=(*inputs(rows)[:1], mask, inputs(rows)[1]))
    for B in (4, 6):
        x, scale, target = inputs(B)
        expected = F.mse_loss(model(x, mask, scale), target)
        expected.backward()
        of_mask, mask.grad = mask.grad, None
        support.close(compiled.step(x, mask, scale, target), expected.detach())
        support.same(support.gradients(compiled), support.gradients(model))
        support.close(mask.grad, of_mask)
        mask.grad = None
    with pytest.raises(InputError, match=r"the batch has 4 rows.* a tensor \[3, 1, 1\] has not as many"):
        compiled.step(inputs(4)[0], mask, inputs(3)[1], inputs(4)[2])


def inputs(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, scale and target."""
    return torch.randn(rows, 4, 4), torch.rand(rows, 1, 1), torch.randn(rows, 4, 3)
