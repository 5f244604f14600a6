"""What runs a compiled model: transforms, other compilers, threads, wrappers, schedules; and models that are let go."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.func import functional_call, grad, jacrev, vmap
from torch.nn.utils import parametrize, prune

import bppsa
from bppsa.schedule import one_f_one_b
from tests.pruned.forwards import FORWARDS, Net
from tests.pruned.side_by_side import Pair, assert_alike, both, images, made
from tests.pruned.support import Mask, error, kernels


class Chain(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.Linear(8, 8))


def chains(**options: Any) -> tuple[nn.Module, nn.Module]:
    """Pruned by torch.nn.utils.prune; where masks are an option, ours is given them so."""
    torch.manual_seed(0)
    plain = Chain().double()
    fast = copy.deepcopy(plain)
    masks = {f"{i}.weight": torch.rand_like(plain[i].weight) < 0.5 for i in (0, 3, 4)}
    for name, mask in masks.items():
        prune.custom_from_mask(plain.get_submodule(name[0]), "weight", mask)
        if "masks" in options or "sparse" in options:
            with torch.no_grad():
                fast.get_parameter(name).mul_(mask)
        else:
            prune.custom_from_mask(fast.get_submodule(name[0]), "weight", mask)
    if "masks" in options:
        options["masks"] = masks
    return plain, bppsa.compile(fast, **options)


def trained(model: nn.Module, step: Callable[[nn.Module, Tensor], Tensor], turns: int = 4) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    found = []
    for turn in range(turns):
        optimizer.zero_grad()
        y = step(model, images(turn, (4, 4, 7, 4)[turn % 4]))
        y.square().mean().backward()
        optimizer.step()
        found += [y.detach().clone(), *(p.detach().clone() for p in model.parameters())]
    return found


OPTIONS = [{}, {"masks": None}, {"sparse": "auto"}, {"fallback": "inductor"}, {"strategy": "sequential"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_of_compile(options: dict[str, Any]) -> None:
    plain, fast = chains(**options)
    for model in (plain, fast):
        trained(model, lambda m, x: m(x))
    assert error(plain(images(9, 4)), fast(images(9, 4))) < 1e-9
    for i in (0, 3, 4):
        ours = fast[i].weight * plain[i].weight_mask
        assert_alike([plain[i].weight, plain[i].bias], [ours, fast[i].bias])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["Net", "Detached", "NoiseOfFixedSize", "DropoutOfNumbers", "Norms", "ChangesBuffers"])
def test_under_an_outer_torch_compile(name: str, backend: str) -> None:
    case = FORWARDS.get(name, Net)
    plain, fast = both(case)
    for _ in range(2):
        pair = Pair(plain, fast)
        pair.train(turns=2)
        outer = Pair(plain, torch.compile(fast, backend=backend))
        outer.turn = 5
        outer.compare_state = lambda: None  # whose paths are the outer module's
        for _ in range(3):
            expected = compare(plain, plain, outer.turn)
            got = compare(outer.models[1], fast, outer.turn)
            assert_alike(expected, got)
            outer.turn += 1


def compare(called: nn.Module, model: Net, turn: int) -> list[Any]:
    torch.manual_seed(turn)
    model.zero_grad()
    y = called(images(turn, 4))
    y.square().mean().backward()
    return [y, {name: p.grad for name, p in model.named_parameters()}, dict(model.named_buffers())]


TRANSFORMS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "vmap": lambda m, x: vmap(lambda row: m(row[None])[0])(x),
    "grad": lambda m, x: grad(lambda x: m(x).square().sum())(x),
    "jacrev": lambda m, x: jacrev(lambda x: m(x).sum(0))(x),
    "gradients of each row": lambda m, x: vmap(grad(lambda row: m(row[None]).square().sum()))(x),
    "functional_call": lambda m, x: functional_call(m, doubled(m), (x,)),
    "grad of weights": lambda m, x: grad(lambda p: functional_call(m, p, (x,)).square().sum())(doubled(m)),
    "jacobian": lambda m, x: torch.autograd.functional.jacobian(lambda x: m(x).sum(0), x),
    "forward mode": lambda m, x: torch.func.jvp(m, (x,), (x,)),
}


def doubled(m: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() * 2 for name, p in m.named_parameters()}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_of_functions(transform: Callable[[nn.Module, Tensor], Any]) -> None:
    pair = Pair(*both(Net))
    for turn in range(3):
        expected, got = (transform(model, images(turn, 4)) for model in pair.models)
        assert_alike(expected, got)
        pair.train()


def test_four_threads_at_once() -> None:
    """Each with its own model, and then all with one."""
    plain, shared = both(Net)
    own = [both(Net)[1] for _ in range(4)]

    def outputs(model: nn.Module) -> list[Tensor]:
        with torch.no_grad():
            return [model(images(turn, (4, 7)[turn % 2])) for turn in range(20)]

    expected = outputs(plain)
    with ThreadPoolExecutor(4) as pool:
        for models in (own, [shared] * 4, own):
            for got in pool.map(outputs, models):
                assert_alike(expected, got)
        expected = trained(plain, lambda m, x: m(x))
        for got in pool.map(lambda m: trained(m, lambda m, x: m(x)), own):
            assert_alike(expected, got)


@torch._dynamo.config.patch(recompile_limit=3, accumulated_recompile_limit=3)  # 300 models would take minutes
def test_more_models_of_one_class_than_any_limit() -> None:
    """One after the other: none is kept alive, and the last runs by kernels as the first does."""
    alive, sizes = [], []
    expected = made(Net)(images(0, 4))
    for i in range(12):
        fast = both(Net)[1]
        for _ in range(2):
            y = fast(images(0, 4))
        y.square().sum().backward()
        assert error(expected, y) < 1e-9
        assert "sparse" in kernels(fast), i
        alive.append(weakref.ref(fast))
        del fast, y
        if i % 4 == 3:
            gc.collect()
            assert not [ref for ref in alive if ref() is not None]
            tensors = [type(x) for x in gc.get_objects() if issubclass(type(x), Tensor)]
            sizes.append(sum(kind is not FakeTensor for kind in tensors))  # of those PyTorch keeps the latest
    assert sizes[-1] <= sizes[0]  # what other tests have left may go meanwhile


@torch._dynamo.config.patch(recompile_limit=3, accumulated_recompile_limit=3)
def test_models_that_live_side_by_side() -> None:
    """More of one class than any limit of compilations."""
    plain = made(Net)
    models = [both(Net)[1] for _ in range(10)]
    for turn in range(2):
        for model in models:
            assert error(plain(images(turn, 4)), model(images(turn, 4))) < 1e-9
    assert all("sparse" in kernels(model) for model in models)


@pytest.mark.parametrize("wrap", [nn.Sequential, nn.DataParallel, lambda m: copy.copy(m)])
def test_within_another_module(wrap: Callable[[nn.Module], nn.Module]) -> None:
    plain, fast = both(Net)
    wrapped = wrap(fast)
    assert_alike(trained(plain, lambda m, x: m(x)), trained(wrapped, lambda m, x: m(x)))


def test_a_schedule_trains_pruned_layers() -> None:
    torch.manual_seed(0)
    plain = Chain().double()
    fast = copy.deepcopy(plain)
    for model in (plain, fast):
        for i in (0, 3, 4):
            mask = torch.rand(model[i].weight.shape, generator=torch.Generator().manual_seed(i)) < 0.5
            parametrize.register_parametrization(model[i], "weight", Mask(mask.double()))
    x, target = images(0, 8), torch.randn(8, 8).double()
    step = bppsa.compile(
        fast, schedule=one_f_one_b(), stages=2, workers=2, microbatches=2, loss_fn=nn.MSELoss(), example_inputs=x
    )
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in (plain, step)]
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = F.mse_loss(plain(x), target)
        expected.backward()
        loss = step.step(x, target)
        assert abs(float(expected.detach()) - float(loss)) < 1e-12
        for optimizer in optimizers:
            optimizer.step()
        assert_alike([p.grad for p in plain.parameters()], [p.grad for p in step.parameters()])
    assert str(step.report)
