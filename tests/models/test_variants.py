"""Ways to build, call and train a model of transformers that the table has not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.errors import BppsaError
from bppsa.schedule import Recipe, ddp, gpipe, lpp, zero_bubble
from tests.models import support as ours
from tests.models.case import of_words
from tests.models.decoders import GPT2, language
from tests.models.library import library
from tests.models.zoo import MODELS
from tests.workers import support

pytestmark = [pytest.mark.models, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")]
GPT = MODELS["gpt2"]


@pytest.fixture(autouse=True)
def installed() -> None:
    ours.skip_without(GPT)
    torch.manual_seed(0)


def scheduled(model: nn.Module, schedule: Recipe | None = None, **options: Any) -> Any:
    options = {"stages": 4, "microbatches": ours.MICROBATCHES, "loss_fn": of_words} | options
    return bppsa.compile(model, schedule=schedule or zero_bubble(), **options)


def check(change: Callable[[Any], object], name: str = "gpt2") -> None:
    """Two steps of a model of the table, after a change."""
    case = MODELS[name]
    model = case.model()
    change(model)
    compiled = scheduled(copy.deepcopy(model), loss_fn=case.loss_fn)
    for seed in range(2):
        args, kwargs, target = case.batch(ours.ROWS, seed)
        expected = ours.serial(case, model, args, kwargs, target)
        support.close(compiled.step(*ours.inputs_of(target, args, case), **kwargs), expected)
        ours.check_trained(case, compiled, model)
        ours.update_both(compiled, model)


def test_frozen_layers() -> None:
    """All that is below the last block."""

    def freeze(model: Any) -> None:
        model.requires_grad_(False)
        model.transformer.h[-1].requires_grad_(True)

    check(freeze)


def test_weights_of_low_rank_beside_frozen_ones() -> None:
    """As LoRA has it: a layer put in the place of another."""

    class LowRank(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer.requires_grad_(False)
            outputs, inputs = layer.weight.shape
            self.a, self.b = nn.Linear(inputs, 2, bias=False), nn.Linear(2, outputs, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + self.b(self.a(x)) / 2

    def adapt(model: Any) -> None:
        model.requires_grad_(False)
        for layer in model.model.layers:
            layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
        model.double()

    check(adapt, "llama")


@pytest.mark.parametrize("reentrant", [False, True])
def test_blocks_that_are_computed_again(reentrant: bool) -> None:
    check(lambda model: model.gradient_checkpointing_enable({"use_reentrant": reentrant}))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_ways_to_attend(name: str, attention: str) -> None:
    check(lambda model: model.set_attn_implementation(attention), name)


def test_outputs_are_of_the_models_classes() -> None:
    case = MODELS["bert"]
    model, (args, kwargs, target) = case.model(), case.batch(ours.ROWS, 0)
    compiled = scheduled(copy.deepcopy(model), loss_fn=case.loss_fn)
    compiled.step(*args, target, **kwargs)
    with torch.no_grad():
        found, expected = compiled.eval()(**kwargs), model.eval()(**kwargs)
    assert type(found) is type(expected)
    assert found.keys() == expected.keys()
    support.close(found.pooler_output, expected.pooler_output)
    support.close(found["last_hidden_state"], expected["last_hidden_state"])


@pytest.mark.parametrize("asked", [{"output_hidden_states": True}, {"return_dict": False}, {"output_attentions": True}])
def test_other_outputs_that_a_call_asks_for(asked: dict[str, bool]) -> None:
    case = replace(MODELS["bert"], inputs=lambda rows, g: ((), MODELS["bert"].inputs(rows, g)[1] | asked))
    model, (args, kwargs, target) = case.model(), case.batch(ours.ROWS, 0)
    if "output_attentions" in asked:
        model.set_attn_implementation("eager")
    compiled = scheduled(copy.deepcopy(model), loss_fn=case.loss_fn)
    for _ in range(2):
        expected = ours.serial(case, model, args, kwargs, target)
        support.close(compiled.step(*args, target, **kwargs), expected)
        ours.check_trained(case, compiled, model)
        ours.update_both(compiled, model)


def test_a_model_that_returns_no_loss() -> None:
    model, (args, _, _) = GPT.model(), GPT.batch(ours.ROWS, 0)
    compiled = scheduled(model, loss_fn=None)
    with pytest.raises(BppsaError, match=r"loss.*give loss_fn=|give loss_fn=.*|labels="):
        compiled.step(*args)


def test_texts_of_another_length() -> None:
    """As batches of a data loader are: trained as the model is, or an error names the argument and its dimension."""
    model, (args, _, target) = GPT.model(), GPT.batch(ours.ROWS, 0)
    compiled = scheduled(copy.deepcopy(model))
    compiled.step(*args, target)
    compiled.zero_grad()
    try:
        loss = compiled.step(args[0][:, :4], target[:, :4])
    except BppsaError as error:
        told = str(error)
    else:
        told = "input_ids dimension 1"
        support.close(loss, ours.serial(GPT, model, (args[0][:, :4],), {}, target[:, :4]))
        ours.check_trained(GPT, compiled, model)
    assert "input_ids" in told
    assert "dimension 1" in told


@pytest.mark.parametrize("schedule", [gpipe(), ddp(), lpp(2, 2)], ids=lambda schedule: schedule.name)
def test_dropout_is_the_same_under_every_schedule(schedule: Recipe) -> None:
    """With the drop probabilities that GPT-2 comes with: of the same seed, step and micro-batch the same is dropped."""
    dropping = {f"{part}_pdrop": 0.1 for part in ("attn", "embd", "resid")}
    case = language("GPT2Config", "GPT2LMHeadModel", **{**GPT2, **dropping}, use_cache=False)
    model, (args, _, target) = case.model(), case.batch(ours.ROWS, 0)
    first, second = (scheduled(copy.deepcopy(model), kind, seed=1) for kind in (zero_bubble(), schedule))
    losses = []
    for _ in range(2):
        losses.append(first.step(*args, target))
        support.close(second.step(*args, target), losses[-1])
        support.same(support.gradients(second), support.gradients(first))
    assert not torch.equal(*losses)
    with torch.no_grad():
        support.close(first.eval()(*args).logits, model.eval()(*args).logits)


def test_two_models_in_one() -> None:
    """One of each of two packages: features of a picture begin a text."""

    class Captioner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.eye, self.bridge = MODELS["timm convnext"].make(), nn.Linear(5, 16)
            self.mouth = GPT.make()

        def forward(self, pixels: Tensor, tokens: Tensor) -> Tensor:
            seen = self.bridge(self.eye(pixels))[:, None]
            read = self.mouth.transformer.wte(tokens)
            return self.mouth(inputs_embeds=torch.cat([seen, read], 1)).logits[:, 1:]

    ours.skip_without(MODELS["timm convnext"])
    library("timm")
    model = Captioner().double()
    pixels, tokens, target = torch.randn(8, 3, 32, 32).double(), *torch.randint(3, 31, (2, 8, 6))
    case = replace(GPT, make=Captioner)
    compiled = scheduled(copy.deepcopy(model))
    expected = ours.serial(case, model, (pixels, tokens), {}, target)
    support.close(compiled.step(pixels, tokens, target), expected)
    ours.check_trained(case, compiled, model)
