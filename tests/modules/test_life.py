"""What people do with a module after it was rewritten: copies, pickles, hooks, optimizers, other weights."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import weight_norm as old_weight_norm
from torch.nn.utils.rnn import pack_sequence

import bppsa
from bppsa.frontend.rnn.classes import Recurrent, rewrite
from tests.modules.conftest import Taken
from tests.modules.models import KINDS, Named, Scaled, Tagger, equal, fast, flat

ROOT = Path(__file__).parents[2]
X = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", KINDS)
def test_deepcopy_is_a_whole_copy(kind: Any, taken: list[Taken]) -> None:
    model = kind(4, 3, num_layers=2)
    ours = fast(model)
    before = ours(X)
    zero = copy.deepcopy(ours)
    assert equal(zero(X), before)
    with torch.no_grad():
        for parameter in zero.parameters():
            parameter.zero_()
    assert equal(ours(X), before)
    assert all(not tensor.any() for tensor in flat(zero(X)))
    assert type(zero) is type(ours)
    assert len(taken) == 4
    assert all(call.module in (ours, zero) for call in taken)


UNPICKLE = """
import pickle, sys, torch
model, x, expected = pickle.load(open(sys.argv[1], "rb"))
got = model(x)
assert torch.allclose(got, expected, atol=1e-6), (got - expected).abs().max()
from bppsa.frontend.rnn.classes import Recurrent
print(sum(isinstance(module, Recurrent) for module in model.modules()))
"""


def test_pickle_into_a_new_process(tmp_path: Path) -> None:
    model = fast(nn.Sequential(Tagger())).eval()
    model[0].named = fast(Named(4, "a"))
    tokens = torch.arange(6).view(3, 2)
    with torch.no_grad():
        expected = model(tokens)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps((model, tokens, expected)))
    arguments = [sys.executable, "-c", UNPICKLE, str(tmp_path / "model.pkl")]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "4"


def test_pickled_subclass_comes_back_rewritten(taken: list[Taken]) -> None:
    back = pickle.loads(pickle.dumps(fast(Named(4, "tag"))))
    assert back.tag == "tag"
    assert back.double() == 8
    assert isinstance(back, Recurrent)
    back(X)
    assert len(taken) == 1
    assert type(copy.copy(back)) is type(back)


def test_a_subclass_is_rewritten_and_keeps_its_forward(taken: list[Taken]) -> None:
    named, scaled = fast(Named(4, "tag")), fast(Scaled(4, 4))
    assert isinstance(named, Named)
    assert repr(named) == "Named(4, 4)"
    named(X)
    assert len(taken) == 1
    assert isinstance(scaled, Scaled)
    scaled(X)
    assert len(taken) == 2


def test_a_class_of_the_users_goes_with_its_modules() -> None:
    class Own(nn.GRU):
        pass

    class Chain(nn.Sequential):
        pass

    compiled = bppsa.compile(nn.Sequential(Own(3, 4))), bppsa.compile(Chain(nn.Tanh()), strategy="blelloch")
    gone = weakref.ref(Own), weakref.ref(Chain)
    del Own, Chain, compiled
    gc.collect()
    gc.collect()  # first what was made of them
    assert [refer() for refer in gone] == [None, None]


def test_a_forward_patched_onto_the_object_is_left() -> None:
    model = nn.GRU(4, 4)
    model.forward = lambda x: x  # type: ignore[method-assign]
    ours, found = rewrite(model)
    assert type(ours) is nn.GRU
    assert found[""].strategy == "pytorch"
    assert ours(X) is X


@pytest.mark.parametrize("kind", KINDS)
def test_class_and_repr(kind: Any) -> None:
    model = kind(4, 3, num_layers=2, batch_first=True)
    ours = fast(model)
    assert isinstance(ours, kind)
    assert repr(ours) == repr(model)
    assert str(type(ours)) == str(type(model))
    assert type(ours) is type(fast(kind(2, 2)))
    assert type(model) is kind


@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks(when: str) -> None:
    model, seen = nn.GRU(4, 3), []
    ours = None if when == "before" else fast(model)
    target = model if ours is None else ours
    target.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    target.register_forward_hook(lambda module, args, result: (result[0] + 1, result[1]))
    target.register_full_backward_hook(lambda module, inputs, outputs: seen.append((inputs[0].shape, outputs[0].shape)))
    target.register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 3, outputs[1]))
    ours = fast(model) if ours is None else ours
    x = X.clone().requires_grad_()
    y, _ = ours(x)
    plain, _ = nn.GRU.forward(ours, 2 * x)
    assert torch.equal(y, plain + 1)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    (expected,) = torch.autograd.grad(3 * plain.sum(), x)
    assert torch.allclose(gradient, expected)
    assert seen == [(torch.Size([5, 2, 4]), torch.Size([5, 2, 3]))]


@pytest.mark.parametrize("when", ["before", "after"])
def test_optimizers_step_the_same_parameters(when: str) -> None:
    model = nn.GRU(4, 3)
    twin = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters()) if when == "before" else None
    ours = fast(model)
    optimizer = optimizer or torch.optim.Adam(ours.parameters())
    other = torch.optim.Adam(twin.parameters())
    for _ in range(3):
        for m, o in ((ours, optimizer), (twin, other)):
            o.zero_grad()
            m(X)[0].square().sum().backward()
            o.step()
    assert equal(ours(X), twin(X))
    assert equal(model(X), twin(X))


def test_train_and_eval_reach_the_dropout_of_the_copy_only() -> None:
    model = nn.Sequential(nn.GRU(4, 3, num_layers=2, dropout=0.5))
    ours = fast(model).eval()
    assert model[0].training
    assert equal(ours(X), ours(X))
    ours.train()
    torch.manual_seed(1)
    first = ours(X)
    torch.manual_seed(1)
    assert equal(model(X), first)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_to_another_dtype(dtype: torch.dtype, taken: list[Taken]) -> None:
    ours = fast(nn.LSTM(4, 3)).to(dtype)
    y, _ = ours(X.to(dtype))
    assert y.dtype == dtype
    assert taken[0].weights[0] is ours.weight_ih_l0
    assert taken[0].weights[0].dtype == dtype


def test_half_goes_to_pytorch(taken: list[Taken]) -> None:
    assert fast(nn.GRU(4, 3)).half()(X.half())[0].dtype == torch.float16
    assert not taken


def test_weights_shared_and_replaced(taken: list[Taken]) -> None:
    model = nn.ModuleList([nn.GRU(4, 4), nn.GRU(4, 4)])
    model[1].weight_hh_l0 = model[0].weight_hh_l0
    ours = fast(model)
    assert ours[1].weight_hh_l0 is ours[0].weight_hh_l0
    ours[0].weight_hh_l0 = nn.Parameter(torch.zeros(12, 4))
    ours[1].load_state_dict({name: torch.zeros_like(p) for name, p in ours[1].named_parameters()}, assign=True)
    ours[0](X)
    assert taken[0].weights[1] is ours[0].weight_hh_l0
    assert not ours[1](X)[0].any()
    assert model[0].weight_hh_l0.any()
    ours.share_memory()
    assert all(weight.is_shared() for weight in ours[0]._flat_weights)
    assert not ours[1](X)[0].any()


def test_functional_call(taken: list[Taken]) -> None:
    model = nn.GRU(4, 3)
    ours = fast(model)
    weights = {name: torch.randn_like(p).requires_grad_() for name, p in ours.named_parameters()}
    got = torch.func.functional_call(ours, weights, (X,))
    expected = torch.func.functional_call(model, weights, (X,))
    assert len(taken) == 1
    assert taken[0].weights[1] is weights["weight_hh_l0"]
    assert equal(got, expected)
    gradients = torch.autograd.grad(got[0].sum(), list(weights.values()))
    expected_gradients = torch.autograd.grad(expected[0].sum(), list(weights.values()))
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected_gradients, strict=True))
    assert equal(ours(X), model(X))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("norm", [old_weight_norm, parametrizations.weight_norm])
@pytest.mark.parametrize("when", ["before", "after"])
def test_weight_norm(norm: Any, when: str, taken: list[Taken]) -> None:
    model = nn.GRU(4, 3)
    twin = norm(copy.deepcopy(model), "weight_hh_l0")
    ours = fast(norm(model, "weight_hh_l0")) if when == "before" else norm(fast(model), "weight_hh_l0")
    assert isinstance(ours, nn.GRU)
    for scale in (1.0, 2.0):  # the second call must see the changed magnitude
        with torch.no_grad():
            for module in (ours, twin):
                next(p for p in module.parameters() if p.shape == (9, 1)).mul_(scale)
        ours.zero_grad(), twin.zero_grad()
        got, expected = ours(X), twin(X)
        assert equal(got, expected)
        got[0].sum().backward(), expected[0].sum().backward()
        assert all(torch.allclose(a.grad, b.grad) for a, b in zip(ours.parameters(), twin.parameters(), strict=True))
    assert len(taken) == 2


def test_spectral_norm_takes_as_many_steps(taken: list[Taken]) -> None:
    """Which its buffers tell: it takes one each time that its weight is computed."""
    twin = parametrizations.spectral_norm(nn.GRU(4, 3), "weight_hh_l0")
    ours = fast(parametrizations.spectral_norm(nn.GRU(4, 3), "weight_hh_l0"))
    ours.load_state_dict(twin.state_dict())
    for _ in range(3):
        assert all(torch.allclose(a, b) for a, b in zip(flat(ours(X)), flat(twin(X)), strict=True))
        assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), twin.buffers(), strict=True))
    assert len(taken) == 3


def test_spectral_norm_takes_as_many_steps_where_pytorch_runs_the_call(taken: list[Taken]) -> None:
    for given in (torch.randn(1, 1, 4), pack_sequence([torch.randn(1, 4)])):
        twin = parametrizations.spectral_norm(nn.RNN(4, 3), "weight_hh_l0")
        ours = bppsa.compile(parametrizations.spectral_norm(nn.RNN(4, 3), "weight_hh_l0"))
        ours.load_state_dict(twin.state_dict())
        for _ in range(2):
            ours(given), twin(given)
            assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), twin.buffers(), strict=True))
    assert not taken


@pytest.mark.parametrize("when", ["before", "after"])
def test_parametrized_modules_do_not_pickle_and_give_their_parametrization_back(when: str, taken: list[Taken]) -> None:
    model = nn.GRU(4, 3)
    if when == "before":
        parametrizations.weight_norm(model, "weight_hh_l0")
    ours = fast(model)
    if when == "after":
        parametrizations.weight_norm(ours, "weight_hh_l0")
    assert type(ours).__name__ == "ParametrizedGRU"
    with pytest.raises(RuntimeError, match="Serialization of parametrized modules"):
        pickle.dumps(ours)
    expected = ours(X)
    parametrize.remove_parametrizations(ours, "weight_hh_l0")
    assert type(ours) is type(fast(nn.GRU(2, 2)))
    assert torch.allclose(ours(X)[0], expected[0])
    assert len(taken) == 2
    if when == "before":
        assert parametrize.is_parametrized(model)
        assert torch.allclose(model(X)[0], expected[0])
