"""Models as people have them are cut into four stages and trained: loss, gradients and buffers are PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest
import torch
from torch import nn

import bppsa
from bppsa.schedule import Recipe, fsdp, lpp, zero_bubble
from tests.breadth import diagonal
from tests.models import support as ours
from tests.models.case import Case
from tests.models.zoo import MODELS, marks
from tests.workers import support

SCHEDULES: Mapping[str, Recipe] = {"zero_bubble": zero_bubble(), "lpp": lpp(G=2), "fsdp": fsdp()}
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def compiled_for(case: Case, model: nn.Module, schedule: Recipe) -> nn.Module:
    return bppsa.compile(
        model, schedule=schedule, stages=case.stages, microbatches=ours.MICROBATCHES, loss_fn=case.loss_fn
    )


@pytest.mark.parametrize(("name", "schedule"), diagonal(MODELS, SCHEDULES, marks=marks))
def test_trains_as_in_one_process(name: str, schedule: str) -> None:
    """Two steps with other batches, an evaluation, and a step of another number of rows after it."""
    case = MODELS[name]
    ours.skip_without(case)
    model = case.model()
    compiled = compiled_for(case, copy.deepcopy(model), SCHEDULES[schedule])
    trainer = bppsa.trainer(compiled)
    for seed, rows in enumerate((ours.ROWS, ours.ROWS, 11)):
        args, kwargs, target = case.batch(rows, seed)
        expected = ours.serial(case, model, args, kwargs, target, rows)
        ours.check_loss(case, trainer.step(*ours.inputs_of(target, args, case), **kwargs), expected)
        ours.check_trained(case, compiled, model)
        assert len(trainer.stages) == case.stages
        ours.update_both(compiled, model)
        if seed == 1:
            check_evaluation(case, compiled, model)


def check_evaluation(case: Case, compiled: nn.Module, model: nn.Module) -> None:
    """What the model returns; of one that returns its loss, which has no rows to be put together by, the loss."""
    args, kwargs, target = case.batch(ours.ROWS, 5)
    compiled.eval(), model.eval()
    if case.loss_fn is None:
        loss = bppsa.trainer(compiled).step(*args, **kwargs)
        ours.check_loss(case, loss, ours.serial(case, model, args, kwargs, target))
    else:
        with torch.no_grad():
            found, expected = ours.tensors(compiled(*args, **kwargs)), ours.evaluated(case, model, args, kwargs)
        support.close(found, expected, ours.TOLERANCES[case.dtype])
    compiled.train().zero_grad(), model.train().zero_grad()
