"""Where masks come from, how they change, and what is said about those that do not fit."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import bppsa
from bppsa.errors import ArgumentError, InputError, InputValueError, StrategyError
from bppsa.plan import sparse as plan
from tests.pruned.support import Mask, assert_same_step, error, kernels, lenet, twins


def model() -> nn.Module:
    torch.manual_seed(0)
    return lenet().double()


def masks_of(model: nn.Module, kept: float = 0.3) -> dict[str, Tensor]:
    return {name: torch.rand_like(p) < kept for name, p in model.named_parameters() if p.dim() > 1}


def test_parametrizations() -> None:
    torch.manual_seed(0)
    plain = model()
    fast = copy.deepcopy(plain)
    masks = masks_of(plain)
    for m in (plain, fast):
        for name, mask in masks.items():
            layer = m.get_submodule(name.removesuffix(".weight"))
            parametrize.register_parametrization(layer, "weight", Mask(mask.double()))
    fast = bppsa.compile(fast)
    assert_same_step(plain, fast, torch.randn(5, 1, 16, 16).double())
    assert set(kernels(fast)) == {"sparse"}


@pytest.mark.parametrize("sparse", ["masks", "auto"])
def test_given_masks_and_zeros_stay_zero(sparse: str) -> None:
    start = model()
    masks = masks_of(start)
    with torch.no_grad():
        for name, mask in masks.items():
            start.get_parameter(name).mul_(mask)
    fast = bppsa.compile(start, masks=masks if sparse == "masks" else None, sparse=sparse)
    optimizer = torch.optim.Adam(fast.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        fast(torch.randn(4, 1, 16, 16).double()).square().sum().backward()
        optimizer.step()
    assert set(kernels(fast)) == {"sparse"}
    for name, mask in masks.items():
        weight = fast.get_parameter(name)
        assert not weight[~mask].any()
        assert not weight.grad[~mask].any()
        assert weight.grad[mask].any()


def test_zeros_alone_are_no_mask() -> None:
    start = model()
    with torch.no_grad():
        start[3].weight[0] = 0
    fast = bppsa.compile(start)
    fast(torch.randn(4, 1, 16, 16).double()).sum().backward()
    assert type(fast) is nn.Sequential
    assert start[3].weight.grad[0].any()


def test_masks_may_change_between_steps() -> None:
    """A mask changed in place, and another one in its place, as iterative pruning does."""
    plain, fast, batch = twins("lenet", amount=0.5)
    assert_same_step(plain, fast, batch(4))
    for m in (plain, fast):
        m[3].weight_mask[0] = 0
    assert_same_step(plain, fast, batch(4))
    for m in (plain, fast):
        prune.l1_unstructured(m[7], "weight", 0.5)
    assert_same_step(plain, fast, batch(4))
    for m in (plain, fast):
        prune.remove(m[7], "weight")
    assert_same_step(plain, fast, batch(4))


def test_pruning_by_and_by_is_planned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is for about so many weights; masks that keep as many only move."""
    monkeypatch.setattr(plan, "MARGIN", 1.2)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 600))
    fast, x = bppsa.compile(prune_all(copy.deepcopy(plain), 0.1)), torch.randn(16, 600)
    prune_all(plain, 0.1)
    ran = []
    for step, kept in enumerate((0.9, 0.9, 0.03, 0.03, 0.9)):
        for i in range(2):
            mask = torch.rand(600, 600, generator=torch.Generator().manual_seed(step + i)) < kept
            plain[i].weight_mask.copy_(mask)
            fast[i].weight_mask.copy_(mask)
        assert error(plain(x), fast(x)) < 1e-5
        ran.append(*set(kernels(fast)))
    assert ran == ["pytorch", "pytorch", "sparse", "sparse", "pytorch"]


def prune_all(model: nn.Module, amount: float) -> nn.Module:
    for layer in model:
        prune.random_unstructured(layer, "weight", amount)
    return model


def test_all_pruned_and_nothing_pruned() -> None:
    plain, fast, batch = twins("lenet", amount=0.5)
    for m in (plain, fast):
        m[3].weight_mask.zero_()
        m[7].weight_mask.fill_(1)
    assert_same_step(plain, fast, batch(4))


def test_a_mask_that_is_no_mask_is_left_to_pytorch() -> None:
    plain, fast, batch = twins("lenet", amount=0.5)
    for m in (plain, fast):
        m[3].weight_mask.mul_(0.5)
    assert_same_step(plain, fast, batch(4))
    left = {d.path: d for d in fast.report.decisions}["3"]
    assert left.strategy == "pytorch"
    assert "other values than 0 and 1" in left.reason


WRONG = [
    ("3.bias", torch.ones(6, dtype=torch.bool), ArgumentError, "no weight of an nn.Conv2d or nn.Linear"),
    (
        "3.weight",
        torch.ones(2, 2, dtype=torch.bool),
        InputError,
        r"3\.weight needs a bool tensor of shape \[6, 4, 3, 3\]",
    ),
    ("3.weight", torch.ones(6, 4, 3, 3), InputError, "not torch.float32"),
    ("3.weight", torch.zeros(6, 4, 3, 3, dtype=torch.bool), InputValueError, "not zero outside of its mask"),
]


@pytest.mark.parametrize(("name", "mask", "kind", "said"), WRONG)
def test_a_mask_that_does_not_fit(name: str, mask: Tensor, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        bppsa.compile(model(), masks={name: mask})


def test_masks_that_are_no_mapping() -> None:
    with pytest.raises(ArgumentError, match=r'masks= takes a mapping .* \{"features.0.weight": mask\}, not a list'):
        bppsa.compile(model(), masks=[1])  # type: ignore[arg-type]


def masked() -> tuple[nn.Module, nn.Module, dict[str, Tensor]]:
    """A model whose weights are zero outside of masks, compiled with them, and the masks."""
    start = model()
    masks = masks_of(start)
    with torch.no_grad():
        for name, mask in masks.items():
            start.get_parameter(name).mul_(mask)
    return start, bppsa.compile(start, masks=masks), masks


@pytest.mark.parametrize("kind", [Tensor.detach, nn.Parameter])
@pytest.mark.parametrize("warm", [False, True])
def test_swapped_parameters_count_within_the_mask(kind: Callable[[Tensor], Tensor], warm: bool) -> None:
    start, fast, masks = masked()
    x = torch.randn(4, 1, 16, 16).double()
    expected = start(x)
    if warm:
        fast(x)
    ones = {name: kind(torch.ones_like(p)) for name, p in fast.named_parameters()}
    kept = {name: p * masks[name] if name in masks else p for name, p in ones.items()}
    assert error(torch.func.functional_call(start, kept, (x,)), torch.func.functional_call(fast, ones, (x,))) < 1e-12
    assert set(kernels(fast)) == {"sparse" if kind is nn.Parameter else "pytorch"}
    assert kind is nn.Parameter or "no Parameter times masks" in fast.report.decisions[1].reason
    assert error(expected, fast(x)) < 1e-12
    assert set(kernels(fast)) == {"sparse"}


def through_a_file(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


@pytest.mark.parametrize("copied", [through_a_file, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("warm", [False, True])
def test_copies_keep_given_masks(copied: Callable[[nn.Module], nn.Module], warm: bool) -> None:
    start, fast, masks = masked()
    x = torch.randn(4, 1, 16, 16).double()
    if warm:
        fast(x)
    other = copied(fast)
    y = other(x)
    y.sum().backward()
    assert error(start(x), y) < 1e-12
    assert set(kernels(other)) == {"sparse"}
    assert not any(other.get_parameter(name).grad[~mask].any() for name, mask in masks.items())


def test_a_mask_that_has_become_none_is_left_to_pytorch() -> None:
    plain, fast, batch = twins("lenet", amount=0.5)
    assert_same_step(plain, fast, batch(4))
    for m in (plain, fast):
        m[3].weight_mask.mul_(0.5)
    assert_same_step(plain, fast, batch(4))
    left = {d.path: d for d in fast.report.decisions}["3"]
    assert left.strategy == "pytorch"
    assert "other values than 0 and 1" in left.reason


@pytest.mark.parametrize(("network", "layer", "name"), [("lenet", "3", "bias"), ("perceptron", "1", "weight")])
def test_other_pruned_parameters(network: str, layer: str, name: str) -> None:
    """A layer's bias, and a batch norm's weight."""
    plain, fast, batch = twins(network)
    for m in (plain, fast):
        torch.manual_seed(2)
        prune.random_unstructured(m.get_submodule(layer), name, 0.5)
    for _ in range(2):
        assert_same_step(plain, fast, batch(4))
        assert set(kernels(fast)) == {"sparse"}
        with torch.no_grad():
            for m in (plain, fast):
                m.get_parameter(f"{layer}.{name}_orig").mul_(2)


def masks_over(model: nn.Module, masks: dict[str, Tensor]) -> nn.Module:
    """The same by torch.nn.utils.prune."""
    for name, mask in masks.items():
        prune.custom_from_mask(model.get_submodule(name.removesuffix(".weight")), "weight", mask)
    return model


def revived(model: nn.Module) -> None:
    """As an optimizer does whose momentum is from before pruning, a checkpoint, an assignment."""
    torch.manual_seed(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                assert name
                p.copy_(torch.randn_like(p))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("sparse", ["masks", "auto"])
def test_given_masks_are_masks_whoever_runs_the_layers(
    left: bool, sparse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, _, masks = masked()
    fast = bppsa.compile(start, masks=masks if sparse == "masks" else None, sparse=sparse)
    plain = masks_over(copy.deepcopy(start), masks)
    monkeypatch.setattr(plan, "MARGIN", 1e9 if left else 0.0)
    for change in (False, True):
        for model in (plain, fast) if change else ():
            revived(model)
        for steps in range(2):
            x = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(steps)).double()
            gradients = []
            for model in (plain, fast):
                model.zero_grad()
                model(x).square().sum().backward()
                gradients.append({n.removesuffix("_orig"): p.grad for n, p in model.named_parameters()})
            for name, gradient in gradients[0].items():
                assert error(gradient, gradients[1][name]) < 1e-11
            assert error(plain(x), fast(x)) < 1e-12
        assert set(kernels(fast)) == {"pytorch" if left else "sparse"}


def test_given_masks_on_the_compiled_model_meet_others() -> None:
    """A second compile, and torch.nn.utils.prune on what has a given mask."""
    start, fast, masks = masked()
    x = torch.randn(4, 1, 16, 16).double()
    with torch.no_grad():
        start[3].weight[0] = 0
    again = bppsa.compile(fast, masks={"3.weight": torch.arange(6).view(6, 1, 1, 1).expand(6, 4, 3, 3) > 0})
    plain = masks_over(copy.deepcopy(start), masks)
    prune.custom_from_mask(plain[3], "weight", plain[3].weight != 0)
    assert_like(plain, again, x)
    more = torch.rand(10, 24) < 0.5
    for model in (plain, again):
        prune.custom_from_mask(model[7], "weight", more)
    assert_like(plain, again, x)


def assert_like(plain: nn.Module, fast: nn.Module, x: Tensor) -> None:
    y = fast(x)
    assert error(plain(x), y) < 1e-12
    assert set(kernels(fast)) == {"sparse"}
    y.sum().backward()


def test_a_loaded_state_is_read_within_the_masks() -> None:
    _, fast, masks = masked()
    x = torch.randn(4, 1, 16, 16).double()
    dense = model()
    fast(x)
    fast.load_state_dict(dense.state_dict())
    assert fast.state_dict().keys() == dense.state_dict().keys()
    assert error(masks_over(dense, masks)(x), fast(x)) < 1e-12


def test_masks_of_what_reads_its_weight_elsewhere() -> None:
    attention = nn.MultiheadAttention(8, 2)
    with pytest.raises(ArgumentError, match=r"out_proj\.weight is of a NonDynamicallyQuantizableLinear"):
        bppsa.compile(attention, masks={"out_proj.weight": torch.ones(8, 8, dtype=torch.bool)})
    with torch.no_grad():
        attention.out_proj.weight[0] = 0
    assert type(bppsa.compile(attention, sparse="auto").out_proj) is type(attention.out_proj)


def test_explain_takes_masks() -> None:
    start, _, masks = masked()
    x = torch.randn(4, 1, 16, 16).double()
    for options in ({"masks": masks}, {"sparse": "auto"}):
        assert {d.strategy for d in bppsa.explain(start, x, **options).decisions} == {"sparse"}  # type: ignore[arg-type]
    with pytest.raises(StrategyError, match="known: masks, auto"):
        bppsa.explain(start, x, sparse="yes")
    with pytest.raises(ArgumentError, match="masks= names weights"):
        bppsa.explain(torch.relu, x, masks=masks)


def test_an_unknown_way_to_find_masks() -> None:
    with pytest.raises(StrategyError, match="known: masks, auto"):
        bppsa.compile(model(), sparse="yes")


def test_a_pruned_layer_with_a_mask_of_ones_elsewhere_is_dense_in_the_region() -> None:
    torch.manual_seed(0)
    plain = model()
    fast = copy.deepcopy(plain)
    for m in (plain, fast):
        prune.random_unstructured(m[3], "weight", 0.9) if m is plain else None
    prune.custom_from_mask(fast[3], "weight", plain[3].weight_mask)
    fast = bppsa.compile(fast)
    assert_same_step(plain, fast, torch.randn(3, 1, 16, 16).double())
    assert {d.path: d.strategy for d in fast.report.decisions} == {
        "0": "blocked",
        "3": "sparse",
        "7": "blocked",
        "9": "blocked",
    }


def test_a_mask_over_a_weight_of_more_than_one_parameter() -> None:
    """Weight normalization has a Parameter for the length and one for the direction."""
    found = []
    for compiled in (False, True):
        made = model()
        for name, mask in masks_of(made).items():
            layer = made.get_submodule(name.removesuffix(".weight"))
            parametrizations.weight_norm(layer)
            parametrize.register_parametrization(layer, "weight", Mask(mask.double()))
        found.append(bppsa.compile(made) if compiled else made)
    assert_same_step(*found, torch.randn(5, 1, 16, 16).double())
    assert set(kernels(found[1])) == {"pytorch"}
    assert "no Parameter times masks" in found[1].report.decisions[0].reason
