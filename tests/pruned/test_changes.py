"""What an owner changes between calls, after several and before several: a compiled model goes on as PyTorch's does."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

import bppsa
from bppsa.plan import sparse
from tests.breadth import chosen
from tests.pruned.forwards import Net
from tests.pruned.side_by_side import Pair, assert_alike, both, images, made
from tests.pruned.support import error, kernels

BEFORE, AFTER = 3, 3


class Deep(Net):
    """With a part of its own and an activation to hang hooks on."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.Tanh()
        self.part = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.conv(x)) + self.part(x))


def doubles(module: nn.Module, args: Any, y: Tensor) -> Tensor:
    return y * 2


def doubles_by_name(module: nn.Module, args: Any, kwargs: dict[str, Any], y: Tensor) -> Tensor:
    return y * (2 + len(kwargs))


def scales_input(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (args[0] * 0.5,)


def scales_input_by_name(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
    return (args[0] * 0.5,), kwargs


def scales_gradient(module: nn.Module, to_inputs: tuple[Tensor, ...], to_outputs: Any) -> Any:
    return tuple(None if g is None else g * 3 for g in to_inputs)


def scales_cotangent(module: nn.Module, to_outputs: tuple[Tensor, ...]) -> Any:
    return tuple(None if g is None else g * 3 for g in to_outputs)


Registers = Callable[[nn.Module], Any]
HOOKS: dict[str, Registers] = {
    "forward": lambda m: m.register_forward_hook(doubles),
    "forward with kwargs": lambda m: m.register_forward_hook(doubles_by_name, with_kwargs=True),
    "forward first": lambda m: m.register_forward_hook(doubles, prepend=True),
    "forward always": lambda m: m.register_forward_hook(doubles, always_call=True),
    "pre": lambda m: m.register_forward_pre_hook(scales_input),
    "pre with kwargs": lambda m: m.register_forward_pre_hook(scales_input_by_name, with_kwargs=True),
    "backward": lambda m: m.register_full_backward_hook(scales_gradient),
    "backward pre": lambda m: m.register_full_backward_pre_hook(scales_cotangent),
}


PLACES = ["", "conv", "act", "part", "part.0", "part.1", "lin"]
# Every hook on a pruned layer, each way through on the model and on a part, and another one at each other place.
CHOSEN = {
    *((hook, "conv") for hook in HOOKS),
    *((hook, place) for hook in ("forward", "pre", "backward") for place in ("", "part")),
    *(("pre with kwargs", "act"), ("backward pre", "part.0"), ("forward always", "part.1"), ("backward", "lin")),
}


@pytest.mark.parametrize(("hook", "place"), chosen(product(HOOKS, PLACES), CHOSEN))
def test_hooks_come_and_go(hook: str, place: str) -> None:
    pair = Pair(*both(Deep))
    pair.train(turns=BEFORE)
    for _ in range(2):
        handles = [HOOKS[hook](model.get_submodule(place)) for model in pair.models]
        pair.train(turns=AFTER)
        pair.train(7)
        for handle in handles:
            handle.remove()
        pair.train(turns=2)
    assert "sparse" in kernels(pair.models[1])


def another(mask: Tensor, kept: float = 0.4) -> Tensor:
    return (torch.rand(mask.shape, generator=torch.Generator().manual_seed(3)) < kept).to(mask)


def mask_in_place(m: Net) -> None:
    m.conv.weight_mask.copy_(another(m.conv.weight_mask))


def one_number_of_a_mask(m: Net) -> None:
    m.lin.weight_mask.view(-1)[5].logical_not_()


def mask_replaced(m: Net) -> None:
    m.lin.weight_mask = another(m.lin.weight_mask)


def mask_data(m: Net) -> None:
    m.lin.weight_mask.data = another(m.lin.weight_mask)


def mask_of_fractions(m: Net) -> None:
    m.lin.weight_mask.mul_(0.5)


def pruned_globally(m: Net) -> None:
    prune.global_unstructured([(m.conv, "weight"), (m.lin, "weight")], prune.L1Unstructured, amount=0.5)


def randomly(m: Net) -> None:
    torch.manual_seed(5)
    prune.random_unstructured(m.lin, "weight", 0.3)


def loaded(m: Net, assign: bool = False) -> None:
    state = {name: value.clone() for name, value in m.state_dict().items()}
    state["lin.weight_orig"] *= 2
    state["conv.weight_mask"] = another(state["conv.weight_mask"])
    m.load_state_dict(state, assign=assign)


def parameter_replaced(m: Net) -> None:
    m.lin.weight_orig = nn.Parameter(m.lin.weight_orig.detach() * 2)


def data_replaced(m: Net) -> None:
    m.conv.weight_orig.data = m.conv.weight_orig.data.flip(0)


def layer_replaced(m: Net) -> None:
    torch.manual_seed(8)
    m.lin = prune.l1_unstructured(nn.Linear(144, 8).double(), "weight", 0.7)


def forward_replaced(m: Net) -> None:
    m.lin.forward = lambda h, before=m.lin.forward: before(h) + 1


CHANGES: dict[str, Callable[[Net], Any]] = {
    change.__name__: change
    for change in (
        *(mask_in_place, one_number_of_a_mask, mask_replaced, mask_data, mask_of_fractions, pruned_globally, randomly),
        *(loaded, parameter_replaced, data_replaced, layer_replaced, forward_replaced),
    )
} | {
    "pruned again": lambda m: prune.l1_unstructured(m.lin, "weight", 0.5),
    "pruned again by rows": lambda m: prune.ln_structured(m.conv, "weight", 0.5, n=2, dim=0),
    "pruned by a mask": lambda m: prune.custom_from_mask(m.lin, "weight", another(m.lin.weight_mask)),
    "bias pruned": lambda m: prune.l1_unstructured(m.conv, "bias", 0.5),
    "removed": lambda m: prune.remove(m.lin, "weight"),
    "all removed": lambda m: [prune.remove(layer, "weight") for layer in (m.lin, m.conv, m.part[0])],
    "removed and pruned": lambda m: prune.l1_unstructured(prune.remove(m.lin, "weight"), "weight", 0.4),
    "loaded by assigning": lambda m: loaded(m, assign=True),
    "frozen": lambda m: m.requires_grad_(False),
    "a layer frozen": lambda m: m.conv.requires_grad_(False),
    "a weight frozen": lambda m: m.lin.weight_orig.requires_grad_(False),
    "evaluates": lambda m: m.eval(),
    "no bias": lambda m: setattr(m.lin, "bias", None),
    "another activation": lambda m: setattr(m, "act", nn.Softplus()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_followed(change: Callable[[Net], Any]) -> None:
    pair = Pair(*both(Deep))
    pair.train(turns=BEFORE)
    pair.look()  # PyTorch prunes once more by the products of its last call
    for model in pair.models:
        change(model)
    after = Pair(*pair.models)
    after.turn = 10
    after.train(turns=AFTER)
    after.train(7)
    after.look()


def test_pruning_again_ranks_by_the_weights_as_they_are_now() -> None:
    pair = Pair(*both(Deep))
    for _ in range(4):
        pair.train(turns=2)
        with torch.no_grad():
            pair.models[0](images(0, 4))  # PyTorch's ranks by the products of its last call
        for model in pair.models:
            prune.l1_unstructured(model.lin, "weight", 0.3)
            prune.global_unstructured(
                [(model.conv, "weight"), (model.part[0], "weight")], prune.L1Unstructured, amount=5
            )
        plain, fast = pair.models
        assert torch.equal(plain.lin.weight_mask, fast.lin.weight_mask)
        assert torch.equal(plain.conv.weight_mask, fast.conv.weight_mask)
        pair.optimizers = Pair(*pair.models).optimizers


@pytest.mark.parametrize("kept", [False, True], ids=["dense gradients", "kept gradients"])
def test_gradients_of_several_batch_sizes_add_up(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if kept:
        monkeypatch.setattr(sparse, "LEAST_WEIGHTS", 0)
        monkeypatch.setattr(sparse, "MOST_KEPT", 1.0)
    models = both(Deep)
    for turn in range(6):
        for model in models:
            if turn % 3 == 0:
                model.zero_grad(set_to_none=turn % 2 == 0)
            if turn == 4:  # a mask becomes another one over the gradient that is there
                mask_in_place(model)
            model(images(turn, (4, 7, 1)[turn % 3])).square().mean().backward()
        expected, got = ([p.grad.to_dense() for p in model.parameters()] for model in models)
        assert_alike(expected, got)


def test_dtypes_come_and_go() -> None:
    plain, fast = both(Deep)
    x = images(0, 4)
    for _ in range(2):
        pair = Pair(plain.double(), fast.double())
        pair.train(turns=2)
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.1)):
            for _ in range(2):
                y, z = plain.to(dtype)(x.to(dtype)), fast.to(dtype)(x.to(dtype))
                assert z.dtype is dtype
                assert error(y.double(), z.double()) < tolerance
            state = {name: value.clone() for name, value in plain.state_dict().items()}
            fast.load_state_dict(state)


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "compile": lambda m: bppsa.compile(m),
}


def saved(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("copied", [*COPIES.values(), saved], ids=[*COPIES, "save"])
def test_copies_of_a_model_that_was_pruned_again(copied: Callable[[nn.Module], nn.Module]) -> None:
    plain, fast = both(Deep)
    pair = Pair(plain, fast)
    pair.train(turns=2)
    pair.look()  # PyTorch's product of weight and mask is that of the last forward
    for model in (plain, fast):
        prune.l1_unstructured(model.lin, "weight", amount=0.5)
    pair.train(turns=1)
    Pair(plain, copied(fast)).look()


@pytest.mark.parametrize("copied", [*COPIES.values(), saved], ids=[*COPIES, "save"])
@pytest.mark.parametrize("how", ["masks", "prune"])
def test_copies_of_a_called_model_train_alone(copied: Callable[[nn.Module], nn.Module], how: str) -> None:
    """PyTorch refuses to copy a model pruned by torch.nn.utils.prune after a call; ours may as well."""
    plain = made(Deep)
    fast = made(Deep)
    if how == "masks":
        masks = {}
        for name, layer in fast.named_modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                masks[f"{name}.weight"] = layer.weight_mask.bool()
                prune.remove(layer, "weight")
        fast = bppsa.compile(fast, masks=masks)
    else:
        fast = bppsa.compile(fast)
    for turn in range(BEFORE):
        fast(images(turn, 4)).sum().backward()
    try:
        twin = copied(fast)
    except (RuntimeError, AttributeError, pickle.PicklingError):
        assert how == "prune"
        return
    for turn in range(BEFORE):
        assert error(plain(images(turn, 4)), twin(images(turn, 4))) < 1e-9
    if copied is not COPIES["compile"]:
        with torch.no_grad():
            for p in twin.parameters():
                p.mul_(2)
    assert error(plain(images(5, 7)), fast(images(5, 7))) < 1e-9


def test_gradients_that_are_zeroed_stay_the_same_tensors() -> None:
    """zero_grad(set_to_none=False) leaves the tensors of gradients that others may hold."""
    pair = Pair(*both(Net))
    pair.train(turns=2)
    for model in pair.models:
        held = [p.grad for p in model.parameters()]
        model.zero_grad(set_to_none=False)
        F.mse_loss(model(images(0, 4)), torch.zeros(4, 8).double()).backward()
        assert all(p.grad is g for p, g in zip(model.parameters(), held, strict=True))
    pair.train(turns=2)
