"""The state of a scheduled model is the model's: versions, extra state, hooks and methods of the class."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bppsa
from bppsa.schedule import gpipe
from tests.workers import support

pytestmark = pytest.mark.usefixtures("in_float64")


class Versioned(nn.Sequential):
    """As torchvision's MNASNet, it takes a state that tells no version for an older model's, which had no scale."""

    _version = 2

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
        self.scale = 2.0

    def get_extra_state(self) -> dict[str, float]:
        return {"scale": self.scale}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.scale = state["scale"]

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version") != 2:
            raise ValueError("the state of an older model")
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def without_bias(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    del state[prefix + "0.bias"]


def compiled_for(model: nn.Module) -> Any:
    return bppsa.compile(model, schedule=gpipe(), stages=2, microbatches=2, loss_fn=F.mse_loss)


@pytest.fixture
def pair() -> tuple[Versioned, Any]:
    """A model, and one of other values, scheduled."""
    model, other = Versioned(), Versioned()
    other.scale = 3.0
    compiled = compiled_for(other)
    compiled.step(torch.randn(4, 4), torch.randn(4, 3))
    return model, compiled


@pytest.mark.parametrize("state_of", [lambda model: model.state_dict(), lambda model: model.full_state_dict()])
def test_the_model_takes_a_compiled_ones_state(pair: tuple[Versioned, Any], state_of: Callable[[Any], Any]) -> None:
    model, compiled = pair
    model.load_state_dict(state_of(compiled))
    assert model.scale == 3.0
    support.close(model.state_dict(), compiled.state_dict())


def test_a_compiled_model_takes_the_models_state(pair: tuple[Versioned, Any]) -> None:
    model, compiled = pair
    compiled.load_state_dict(model.state_dict())
    assert compiled.scale == 2.0
    support.close(compiled.state_dict(), model.state_dict())


def test_a_part_of_another_module(pair: tuple[Versioned, Any]) -> None:
    model, compiled = pair
    whole, other = nn.Sequential(model, nn.Linear(3, 1)), nn.Sequential(compiled, nn.Linear(3, 1))
    other.load_state_dict(whole.state_dict())
    assert compiled.scale == 2.0
    whole.load_state_dict(copy.deepcopy(other.state_dict()))
    support.close(other.state_dict(), whole.state_dict())


def test_hooks_of_the_model_change_its_state() -> None:
    model = Versioned()
    model.register_state_dict_post_hook(without_bias)
    compiled = compiled_for(model)
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert "0.bias" not in compiled.state_dict()
