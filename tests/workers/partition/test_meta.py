"""Models without memory are cut, and get their weights later."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bppsa
from tests.breadth import alternate
from tests.models.plain import Encoder, Translator, UNet
from tests.workers import support
from tests.workers.partition.support import Batch, Model, batch, check_step, compiled_for


def inputs(model: type[nn.Module]) -> tuple[torch.Tensor, ...]:
    words = torch.randint(3, 31, (6, 7))
    return {
        Encoder: (words, torch.ones_like(words)),
        Translator: (words, words[:, :5]),
        UNet: (torch.randn(6, 3, 16, 16),),
    }[model]


@pytest.mark.parametrize("make", alternate([Encoder, Translator, UNet]))
def test_a_model_without_memory_is_cut(make: type[nn.Module]) -> None:
    with torch.device("meta"):
        model = make()
    cut = bppsa.partition(model, inputs(make), 4)
    assert len(cut) == 4
    assert {name for stage in cut.stages for name in stage.names.values()} >= dict(model.named_parameters()).keys()
    assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def test_a_model_without_memory_is_trained_once_it_is_loaded() -> None:
    real, given = nn.Sequential(Model(), nn.BatchNorm1d(4), Model()), batch()
    with torch.device("meta"):
        model = nn.Sequential(Model(), nn.BatchNorm1d(4), Model())
    compiled = compiled_for(model, given, stages=3)
    compiled.load_state_dict(real.state_dict())
    for rows in (6, 9):
        check_step(compiled, real, batch(rows))
    support.close(compiled.state_dict(), real.state_dict())
    with torch.no_grad():
        support.close(compiled.eval()(*given.args), real.eval()(*given.args))


def test_keywords_of_a_model_without_memory() -> None:
    words = torch.randint(3, 31, (6, 7))
    given = Batch((), {"input_ids": words, "attention_mask": torch.ones_like(words)})
    real = Encoder()
    with torch.device("meta"):
        model = Encoder()
    compiled = compiled_for(model, given)
    compiled.load_state_dict(real.state_dict())
    check_step(compiled, real, given)
