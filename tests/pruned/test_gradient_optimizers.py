"""Every optimizer of torch, and what else trains with gradients, given gradients that hold kept entries alone."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm, parameters_to_vector
from torch.optim import swa_utils

from bppsa.plan import sparse
from bppsa.runtime.sparse_conv.gradient import KeptGradient
from tests.breadth import diagonal
from tests.pruned.forwards import Net
from tests.pruned.side_by_side import assert_alike, both, images
from tests.pruned.support import error

Make = Callable[[nn.Module], torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "LEAST_WEIGHTS", 0)
    monkeypatch.setattr(sparse, "MOST_KEPT", 1.0)


def backward(model: nn.Module, turn: int, samples: int = 4) -> Tensor:
    loss = model(images(turn, samples)).square().mean()
    loss.backward()
    return loss


def kept(model: nn.Module) -> list[Tensor]:
    found = [p.grad for p in model.parameters() if isinstance(p.grad, KeptGradient)]
    assert len(found) == 2
    return found


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.to_dense() for p in model.parameters()]


OPTIMIZERS = sorted(
    name
    for name, value in vars(torch.optim).items()
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
)
# A line search is chaotic: after some iterations PyTorch's own follow another path where weights differ by 1e-15.
VARIANTS: list[dict[str, Any]] = [
    *({}, {"foreach": True}, {"foreach": False}, {"fused": True}, {"capturable": True}, {"differentiable": True}),
    *({"maximize": True}, {"weight_decay": 0.1}, {"momentum": 0.9, "nesterov": True}, {"amsgrad": True}),
    *(
        {"centered": True, "momentum": 0.5},
        {"line_search_fn": "strong_wolfe", "max_iter": 3},
        {"decoupled_weight_decay": True},
    ),
]


def trained(model: nn.Module, name: str, flags: dict[str, Any]) -> list[Tensor] | type[Exception]:
    """Its parameters after some steps, or which error PyTorch raises for what the optimizer does not take."""
    parameters = [p for p in model.parameters() if p.dim() == 2 or name != "Muon"]
    try:
        optimizer = getattr(torch.optim, name)(parameters, lr=0.01, **flags)
        for turn in range(4):

            def closure(turn: int = turn) -> Tensor:
                optimizer.zero_grad(set_to_none=turn % 2 == 0)
                return backward(model, turn)

            closure()
            kept(model)
            optimizer.step(closure) if name == "LBFGS" else optimizer.step()
    except (RuntimeError, ValueError, TypeError, AssertionError) as refused:
        return type(refused)
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(("name", "flags"), diagonal(OPTIMIZERS, VARIANTS))
def test_every_optimizer_follows_pytorch(name: str, flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, fast = both(Net)
    start = [p.detach().clone() for p in plain.parameters()]
    got = trained(fast, name, flags)
    monkeypatch.setattr(f"{__name__}.kept", lambda model: [])
    expected = trained(plain, name, flags)
    if isinstance(expected, type) or isinstance(got, type):
        assert expected is got
        return
    for a, b, before in zip(expected, got, start, strict=True):
        assert error(a - before, b - before) < 1e-9 or torch.equal(a, b)


def scaled(model: nn.Module) -> Any:
    scaler, optimizer = torch.amp.GradScaler("cpu", 64.0), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scales = []
    for turn in range(4):
        optimizer.zero_grad()
        loss = model(images(turn, 4)).square().mean()
        scaler.scale(loss * (float("inf") if turn == 2 else 1.0)).backward()
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scales += [scaler.get_scale()] + ([] if turn == 2 else [norm])
    return scales


def clipped(model: nn.Module) -> Any:
    norms = []
    for order in (1.0, 2.0, float("inf"), 0.5):
        backward(model, 0)
        norms.append(get_total_norm([p.grad for p in model.parameters()], order))
        norms.append(clip_grad_norm_(model.parameters(), 0.1, order, foreach=order != 2.0))
        clip_grad_value_(model.parameters(), 0.01)
    return [*norms, parameters_to_vector(p.grad for p in model.parameters())]


def averaged(model: nn.Module) -> Any:
    """Exponential and equal averages of weights; a schedule for their learning rate."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = swa_utils.SWALR(optimizer, swa_lr=0.05)
    average = [p.detach().clone() for p in model.parameters()]
    decay, equal = swa_utils.get_ema_multi_avg_fn(0.9), swa_utils.get_swa_multi_avg_fn()
    for turn in range(3):
        optimizer.zero_grad()
        backward(model, turn)
        optimizer.step()
        schedule.step()
        decay(average, [p.detach() for p in model.parameters()], turn)
        equal(average, [p.grad for p in model.parameters()], torch.tensor(turn))
    return average


def accumulated(model: nn.Module) -> Any:
    """Of batches of several sizes, into gradients that are zeroed or kept."""
    for turn, (samples, to_none) in enumerate([(4, True), (7, False), (4, False), (7, True)]):
        model.zero_grad(set_to_none=to_none)
        backward(model, turn, samples)
        backward(model, turn + 1, 11 - samples)
    return gradients(model)


def copied(model: nn.Module) -> Any:
    """And put in the place of the parameters' own gradients, written into, and added up by hand."""
    backward(model, 0)
    copies = [copy.deepcopy(p.grad) for p in model.parameters()]
    total = [torch.zeros_like(p) for p in model.parameters()]
    for p, twin, t in zip(model.parameters(), copies, total, strict=True):
        t.add_(p.grad).addcmul_(p.grad, twin, value=0.5).lerp_(p.grad, 0.3)
        p.grad.copy_(twin * 2)
        p.grad = copy.copy(p.grad)
        p.grad.copy_(t.to(torch.float32))
    buffer = io.BytesIO()
    torch.save([p.grad for p in model.parameters()], buffer)
    buffer.seek(0)
    return [total, gradients(model), [g.to_dense() for g in torch.load(buffer, weights_only=True)]]


def noisy(model: nn.Module) -> Any:
    """Noise on gradients; a step without an optimizer; the gradient's own centre taken off."""
    torch.manual_seed(0)
    for turn in range(3):
        model.zero_grad()
        backward(model, turn)
        with torch.no_grad():
            for p in model.parameters():
                p.grad.add_(torch.randn_like(p.grad) * 0.01)
                p.sub_(p.grad - p.grad.mean(), alpha=0.1)
                p.add_(p.grad.sign(), alpha=-0.01).addcdiv_(p.grad, p.grad.abs() + 1, value=-0.1)
    return list(model.parameters())


def hooked(model: nn.Module) -> Any:
    """An optimizer's step within the backward, after which the gradient is let go."""
    optimizers = {p: torch.optim.SGD([p], 0.1, momentum=0.9) for p in model.parameters()}

    def step(p: Tensor) -> None:
        optimizers[p].step()
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for turn in range(3):
        backward(model, turn)
    return list(model.parameters())


def compiled(model: nn.Module) -> Any:
    """The optimizer's step under torch.compile."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    step = torch.compile(optimizer.step, backend="eager")
    for turn in range(3):
        optimizer.zero_grad()
        backward(model, turn)
        step()
    return list(model.parameters())


WAYS = [scaled, clipped, averaged, accumulated, copied, noisy, hooked, compiled]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_else_trains_follows_pytorch(way: Callable[[nn.Module], Any]) -> None:
    expected, got = (way(model) for model in both(Net))
    assert_alike(expected, got)


@pytest.mark.slow
def test_memory_stays_flat_in_a_long_training() -> None:
    """As do the tensors that are alive, in numbers and in bytes."""
    fast = both(Net)[1]
    optimizer = torch.optim.SGD(fast.parameters(), 1e-3, momentum=0.9)
    counts = []
    for turn in range(2000):
        optimizer.zero_grad(set_to_none=turn % 3 == 0)
        backward(fast, turn % 5, 4 + turn % 2)
        clip_grad_norm_(fast.parameters(), 1.0)
        optimizer.step()
        if turn % 500 == 499:
            gc.collect()
            tensors = [type(x) for x in gc.get_objects() if issubclass(type(x), Tensor)]
            counts.append((sum(kind is not FakeTensor for kind in tensors), resident()))
    assert counts[-1][0] <= counts[0][0]  # what other tests have left may go meanwhile
    assert counts[-1][1] - counts[1][1] < 4 << 20


def resident() -> int:
    """Bytes of this process in memory; where /proc is not there, none."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096
    except FileNotFoundError:
        return 0
