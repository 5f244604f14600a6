"""A model that returns its loss, called as a module: the loss of the batch is that of its micro-batches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import compile, trainer
from bppsa.errors import InputError, ScheduleError, WorkerError
from bppsa.schedule import Recipe, ddp, one_f_one_b
from tests.workers import support

pytestmark = pytest.mark.usefixtures("in_float64")


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        logits = self.head(self.words(ids).tanh())
        loss = None if labels is None else F.cross_entropy(logits.transpose(1, 2), labels)
        return {"loss": loss, "logits": logits}


def batch(rows: int) -> dict[str, Tensor]:
    """Labels of which some are ignored, and those of the last rows all."""
    ids, labels = torch.randint(9, (rows, 5)), torch.randint(3, (rows, 5))
    labels[torch.rand(rows, 5) < 0.5] = -100
    labels[-2:] = -100
    return {"ids": ids, "labels": labels}


@pytest.mark.filterwarnings("ignore:called as a module")
@pytest.mark.parametrize("schedule", [ddp(), one_f_one_b()])
def test_the_loss_is_the_batchs(schedule: Recipe) -> None:
    model = Tagger()
    reference = copy.deepcopy(model)
    compiled = compile(model, schedule=schedule, stages=2, microbatches=4)
    for rows in (8, 7):
        given = batch(rows)
        expected, found = reference(**given), compiled(**given)
        support.close(found, expected)
        (expected["loss"] + expected["logits"][:, 0].square().mean()).backward()
        (found["loss"] + found["logits"][:, 0].square().mean()).backward()
        support.same(support.gradients(compiled), support.gradients(reference))
        _, outputs = trainer(compiled).step(given, return_outputs=True)
        reference(**given)["loss"].backward()
        support.close(outputs, expected)
        support.same(support.gradients(compiled), support.gradients(reference))
    compiled.eval()
    with torch.no_grad():
        support.close(compiled(**given), reference(**given))
        support.close(compiled(given["ids"]), reference(given["ids"]))


class InATuple(Tagger):
    """As nanoGPT, whose model returns (logits, loss)."""

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
        made = super().forward(ids, labels)
        return made["logits"], made["loss"]


class Twice(InATuple):
    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
        logits, loss = super().forward(ids, labels)
        return logits.mean(), loss


def test_a_loss_in_a_tuple() -> None:
    model = InATuple()
    reference = copy.deepcopy(model)
    compiled = compile(model, schedule=one_f_one_b(), stages=2, microbatches=4)
    given = batch(7)
    logits, loss = reference(**given)
    loss.backward()
    found, outputs = trainer(compiled).step(given, return_outputs=True)
    support.close([found.detach().as_subclass(Tensor), outputs], [loss.detach(), (logits, loss)])
    support.same(support.gradients(compiled), support.gradients(reference))
    with pytest.raises(WorkerError, match=r"the model returns a tuple, and a step needs a loss"):
        compile(Twice(), schedule=one_f_one_b(), stages=2, microbatches=4).step(given)


def test_what_is_no_loss_is_refused() -> None:
    class Other(Tagger):
        def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
            made = super().forward(ids, labels)
            return {"mean": made["logits"].mean(), **made}

    class Root(Tagger):
        def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
            made = super().forward(ids, labels)
            return made | {"loss": made["loss"].sqrt()}

    with torch.no_grad():
        with pytest.raises(
            InputError, match=r"returns a tensor \[\] for a micro-batch of 2 rows: .* return it as loss"
        ):
            compile(Other(), schedule=ddp(), stages=2, microbatches=4)(**batch(8))
        with pytest.raises(ScheduleError, match=r"sqrt\(\).*: from here on the loss is neither a mean nor a sum"):
            compile(Root(), schedule=ddp(), stages=2, microbatches=4)(**batch(8))
