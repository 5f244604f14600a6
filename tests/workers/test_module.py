"""A scheduled model called as a module: outputs, `.backward()`, evaluation."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bppsa import compile
from bppsa.errors import ArgumentError, InputError, ScheduleError, WorkerError
from bppsa.schedule import ddp, gpipe, lpp, one_f_one_b
from tests.breadth import alternate, diagonal
from tests.workers import support, zoo

pytestmark = pytest.mark.usefixtures("in_float64")
LAYERS = zoo.Layers((("linear", 0), ("tied", 0), ("skip", 1), ("frozen", 0), ("input", 0)), (1, 3), 0)


def batch(rows: int) -> tuple[Tensor, dict[str, object]]:
    return support.real(rows, zoo.WIDTH), {"y": support.real(rows, zoo.WIDTH), "power": 2.0}


def compiled_drawn(case: zoo.Case) -> tuple[nn.Module, nn.Module]:
    """A model, and a copy of it scheduled."""
    model = zoo.Drawn(LAYERS)
    clone = copy.deepcopy(model)
    compiled = compile(
        clone,
        **case.options,
        loss_fn=support.loss_of,
    )
    return model, compiled


@pytest.mark.parametrize("name", alternate(zoo.CASES))
@pytest.mark.filterwarnings("ignore:called as a module")
def test_backward_is_the_models(name: str) -> None:
    model, compiled = compiled_drawn(zoo.CASES[name])
    for _ in range(2):  # gradients add up
        x, other = batch(7)
        twins = x.detach().clone().requires_grad_(), {**other, "y": other["y"].detach().clone().requires_grad_()}
        target = torch.randn(7)
        expected, found = model(x, other), compiled(*twins)
        support.close(found, expected)
        support.loss_of(expected, target).backward()
        support.loss_of(found, target).backward()
        support.same(support.gradients(compiled), support.gradients(model))
        support.close([twins[0].grad, twins[1]["y"].grad], [x.grad, other["y"].grad])


def test_what_becomes_of_outputs_is_free() -> None:
    """Some unused, some used twice, and calls whose backwards come in another order."""
    model, compiled = compiled_drawn(zoo.CASES["gpipe"])
    batches = [batch(5), batch(4)]
    for call in (model, compiled):
        (x, other), (z, more) = batches
        first, second = call(x, other), call(z, more)
        second["side"][0][0].sum().backward()
        (first["last"].sum() * first["last"].sum()).backward()
    support.same(support.gradients(compiled), support.gradients(model))


def test_backward_twice_is_an_error() -> None:
    _, compiled = compiled_drawn(zoo.CASES["gpipe"])
    loss = support.loss_of(compiled(*batch(4)), torch.randn(4))
    loss.backward(retain_graph=True)
    with pytest.raises(WorkerError, match=r"second backward .* call the model again"):
        loss.backward()
    compiled.step(*batch(4), torch.randn(4))  # and the next step works


@pytest.mark.parametrize(("schedule", "warned"), [(gpipe(), False), (lpp(2, 2), False), (one_f_one_b(), True)])
def test_schedules_that_limit_what_is_in_flight_name_step(schedule: object, warned: bool) -> None:
    _, compiled = compiled_drawn(zoo.Case(schedule, 3, 4))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        compiled(*batch(4))
    assert [str(w.message) for w in found if "step(x, target)" in str(w.message)] == [
        str(w.message) for w in found if warned
    ]
    assert all(w.filename == __file__ for w in found)


@pytest.mark.parametrize(
    ("name", "mode"),
    diagonal(["one_f_one_b", "zero_bubble", "fslpp", "wavelet_dp"], [torch.no_grad, torch.inference_mode]),
)
def test_evaluation_runs_forwards_alone(name: str, mode: type) -> None:
    model, compiled = compiled_drawn(zoo.CASES[name])
    x, other = batch(5)
    with mode():
        found = compiled.eval()(x, other)
        expected = model.eval()(x, other)
    support.close(found, expected)
    assert not found["last"].requires_grad
    assert found["last"].is_inference() == (mode is torch.inference_mode)
    assert {d for _, _, d in compiled.measured.jobs} == {"F"}
    assert all(p.grad is None for p in compiled.parameters())
    assert sum(compiled.measured.peak_activations) == 0


def test_step_returns_outputs_without_a_graph() -> None:
    model, compiled = compiled_drawn(zoo.CASES["zero_bubble"])
    x, other = batch(5)
    loss, found = compiled.step(x, other, torch.randn(5), return_outputs=True)
    support.close(found, model(x, other))
    assert not loss.requires_grad
    assert not found["last"].grad_fn


@pytest.mark.parametrize("with_outputs", [False, True])
def test_the_backward_of_a_step_has_run(with_outputs: bool) -> None:
    _, compiled = compiled_drawn(zoo.CASES["gpipe"])
    x, other = batch(5)
    found = compiled.step(x, other, torch.randn(5), return_outputs=with_outputs)
    loss = found[0] if with_outputs else found
    before = support.gradients(compiled)
    with pytest.raises(WorkerError, match=r"in \.grad.*leave \.backward\(\) out"):
        loss.backward()
    support.same(support.gradients(compiled), before)


def test_the_loss_of_a_step_is_a_tensor_like_others() -> None:
    _, compiled = compiled_drawn(zoo.CASES["gpipe"])
    loss = compiled.step(*batch(5), torch.randn(5))
    assert repr(loss) == repr(torch.tensor(loss.item()))
    stored = io.BytesIO()
    torch.save({"loss": loss}, stored)
    stored.seek(0)
    copies = [torch.load(stored)["loss"], copy.deepcopy(loss), copy.copy(loss), pickle.loads(pickle.dumps(loss))]
    for other in (
        *copies,
        loss.detach(),
        loss.clone(),
        loss * 1.0,
        torch.stack([loss, loss]).mean(),
        loss.cpu().clone(),
    ):
        assert other == loss
        assert type(other) is Tensor
    assert loss.numpy().shape == ()
    assert f"{loss:.3f}" == f"{loss.item():.3f}"


def test_a_gradient_flows_on_into_what_made_the_inputs() -> None:
    embed = nn.Linear(3, zoo.WIDTH)
    model, compiled = compiled_drawn(zoo.CASES["ddp"])
    x, (_, other), target = torch.randn(5, 3), batch(5), torch.randn(5)
    support.loss_of(model(embed(x), other), target).backward()
    expected = support.gradients(embed)
    embed.zero_grad()
    compiled.step(embed(x), other, target)
    support.same(support.gradients(embed), expected)


def test_hooks_of_parameters_and_inputs_see_the_whole_gradient() -> None:
    """As where a mask keeps some weights at zero."""
    model, compiled = compiled_drawn(zoo.CASES["gpipe"])
    (x, other), target = batch(5), torch.randn(5)
    calls: list[str] = []
    for net in (model, compiled):
        net.first.weight.register_hook(lambda grad: grad.tril())
        net.first.bias.register_post_accumulate_grad_hook(lambda p: calls.append("after"))
        x.register_hook(lambda grad: grad * 2)
        x.grad = None
        if net is model:
            support.loss_of(model(x, other), target).backward()
            expected = x.grad
        else:
            compiled.step(x, other, target)
    support.same(support.gradients(compiled), support.gradients(model))
    support.close(x.grad, expected * 2)  # by then there are two hooks
    assert calls == ["after", "after"]


class OwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.b(self.a(x).tanh()) - y).square().mean()


def test_a_model_may_return_its_loss() -> None:
    model, (x, y) = OwnLoss(), (torch.randn(7, 4), torch.randn(7, 2))
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=3)
    expected = model(x, y)
    expected.backward()
    support.close(compiled.step(x, y), expected.detach())
    support.same(support.gradients(compiled), support.gradients(model))
    compiled.zero_grad()
    compiled(x, y).backward()
    support.same(support.gradients(compiled), support.gradients(model))


def test_what_is_wrong_is_said() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    compiled = compile(model, schedule=ddp(), stages=2, microbatches=2, loss_fn=nn.MSELoss(reduction="none"))
    with pytest.raises(ScheduleError, match="example_inputs"):
        _ = compiled.timeline
    with pytest.raises(ArgumentError, match="takes the model's arguments and then a target"):
        compiled.step()
    with pytest.raises(WorkerError, match="give loss_fn=, with a reduction"):
        compiled.step(torch.randn(4, 4), torch.randn(4, 4))
    with pytest.raises(InputError, match="no tensor with rows"):
        compiled.step(torch.tensor(1.0), torch.tensor(1.0))


class Shared(nn.Module):
    """Two arguments without rows whose gradients autograd gives in one memory, and one whose gradient is expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, p: Tensor, q: Tensor, r: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)) + (p + q)) * r.sum()


def test_gradients_of_arguments_have_memory_of_their_own() -> None:
    model = Shared()
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=1, loss_fn=nn.MSELoss())
    x, target = torch.randn(5, 4), torch.randn(5, 4)
    given, twins = ([torch.ones(4, requires_grad=True) for _ in range(3)] for _ in range(2))
    for _ in range(3):
        nn.functional.mse_loss(model(x, *given), target).backward()
        compiled.step(x, *twins, target)
    support.close([t.grad for t in twins], [t.grad for t in given])


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.b(torch.tanh(self.a(x)))
        return h, torch.fft.fft(h), h.detach()


def test_a_complex_output_has_a_gradient_and_a_detached_one_none() -> None:
    model = Spectrum()
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=2)
    x = torch.randn(6, 4)
    for run in (model, compiled):
        h, spectrum, constant = run(x)
        assert not constant.requires_grad
        (h.sum() + spectrum.abs().square().sum() + constant.sum()).backward()
    support.same(support.gradients(compiled), support.gradients(model))


def test_gradients_of_gradients_are_refused() -> None:
    compiled = compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), schedule=gpipe(), stages=2, microbatches=2)
    x = torch.randn(6, 4, requires_grad=True)
    with pytest.raises(WorkerError, match="no gradients of gradients"):
        torch.autograd.grad(compiled(x).sum(), x, create_graph=True)


@pytest.mark.filterwarnings("ignore:called as a module")
def test_a_model_that_holds_layers_by_place_does_so_when_it_is_compiled() -> None:
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    compiled = compile(layers, schedule=gpipe(), stages=2, microbatches=2)
    held: Any = compiled
    assert [held[0], held[1], held[-1]] == list(held) == list(compiled.children())
    assert len(held) == 3
    assert held[1] in held
    x = torch.randn(4, 3)
    clone: Any = copy.deepcopy(compiled)
    support.close(clone[:2](x), layers[:2](x))
    support.close(compiled(x), layers(x))
    assert not hasattr(compile(zoo.Drawn(LAYERS), schedule=gpipe(), stages=2, microbatches=2), "__len__")
