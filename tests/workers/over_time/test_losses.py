"""A loss is cut into those of chunks where that gives the whole's, and refused where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa.errors import ArgumentError, ScheduleError
from tests.breadth import diagonal
from tests.workers.over_time import zoo
from tests.workers.over_time.support import EXACT, over_time, step_difference

ROWS, STEPS = 4, 11


class Summed:
    """A loss that says of itself that it is a sum."""

    reduction = "sum"

    def __call__(self, scores: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), target.flatten(), reduction="sum")


def of_last_scores(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores[:, -1], target)


def of_last_of_all(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores[:, -1], target[:, -1])


def of_scores_alone(scores: Tensor, target: Any) -> Tensor:
    return scores.square().mean()


def of_a_label_a_row(scores: Tensor, target: Tensor) -> Tensor:
    """Each step should give the row's label."""
    return F.cross_entropy(scores.flatten(0, 1), target[:, None].expand(-1, scores.shape[1]).flatten())


def of_classes_first(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores.transpose(1, 2), target)


def of_several(scores: Tensor, target: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), target["words"].flatten()) + (scores - target["like"]).square().mean()


def labels() -> Tensor:
    return torch.randint(zoo.CLASSES, (ROWS,))


def several() -> dict[str, Tensor]:
    return {"words": zoo.words(ROWS, STEPS)[1], "like": torch.randn(ROWS, STEPS, zoo.CLASSES)}


EXACTLY_CUT: dict[str, tuple[Callable[..., Tensor], Callable[[], Any]]] = {
    "a mean over rows and steps": (zoo.of_words, lambda: zoo.words(ROWS, STEPS)[1]),
    "a sum": (Summed(), lambda: zoo.words(ROWS, STEPS)[1]),
    "the last step's": (of_last_scores, labels),
    "the last step's of a target of all": (of_last_of_all, lambda: zoo.words(ROWS, STEPS)[1]),
    "of no target": (of_scores_alone, lambda: None),
    "of a target without steps": (of_a_label_a_row, labels),
    "with classes in dimension 1": (of_classes_first, lambda: zoo.words(ROWS, STEPS)[1]),
    "of several targets": (of_several, several),
}


@pytest.mark.parametrize(("name", "microbatches"), diagonal(EXACTLY_CUT, [1, 3]))
def test_a_loss_is_the_whole_batchs(name: str, microbatches: int) -> None:
    loss_fn, target = EXACTLY_CUT[name]
    model, (x, _) = zoo.Words(), zoo.words(ROWS, STEPS)
    compiled = over_time(model, 3, microbatches=microbatches, loss_fn=loss_fn)
    assert step_difference(model, compiled, [x], target(), loss_fn) < EXACT


def of_some(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=2)


def weighing_classes(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), target.flatten(), torch.arange(1.0, zoo.CLASSES + 1))


def rows_added(scores: Tensor, target: Tensor) -> Tensor:
    """A mean over steps, and a sum over rows."""
    return F.cross_entropy(scores.transpose(1, 2), target, reduction="none").mean(1).sum()


def of_differences(scores: Tensor, target: Tensor) -> Tensor:
    """Steps meet in it."""
    return zoo.of_words(scores, target) + scores.diff(dim=1).square().mean()


def of_last_of_some(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores[:, -1], target, ignore_index=2)


def test_rows_that_count_otherwise_are_found_out() -> None:
    x, target = zoo.words(ROWS, STEPS)[0], torch.tensor([0, 2, 1, 3])
    compiled = over_time(zoo.Words(), 2, microbatches=2, loss_fn=of_last_of_some)
    with pytest.raises(ScheduleError, match="cannot be cut under this loss"):
        compiled.step(x, target)


def of_its_root(scores: Tensor, target: Tensor) -> Tensor:
    return zoo.of_words(scores, target).sqrt()


@pytest.mark.parametrize(
    ("loss_fn", "seed"),
    diagonal([of_some, weighing_classes, rows_added, of_differences, of_its_root], range(4)),
)
def test_another_loss_is_refused(loss_fn: Any, seed: int) -> None:
    """Whatever the target: what counts otherwise may stand anywhere in it, or in as many places of each chunk."""
    torch.manual_seed(seed)
    x, target = zoo.words(ROWS, STEPS)
    compiled = over_time(zoo.Words(), 3, microbatches=2, loss_fn=loss_fn)
    with pytest.raises(ScheduleError, match=r"cannot be cut under this loss.*loss_weight\(target\)"):
        compiled.step(x, target)


def test_a_loss_of_steps_and_the_final_state_is_refused_and_a_call_takes_it() -> None:
    model, x, target = zoo.Network("gru", batch_first=True), torch.randn(ROWS, STEPS, 3), torch.randn(ROWS, STEPS, 6)

    def loss_fn(output: Any, target: Tensor) -> Tensor:
        return zoo.of_values(output[0], target) + output[1].square().mean()

    with pytest.raises(ScheduleError, match="cannot be cut under this loss"):
        over_time(model, 2, loss_fn=loss_fn).step(x, target)
    loss_fn(over_time(model, 2)(x), target).backward()
    assert model.recurrent.weight_hh_l0.grad is not None


def test_a_later_target_with_numbers_to_ignore_is_found_out() -> None:
    """The first target has none, so that the loss is a mean over rows and steps for it."""

    def padded(scores: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=-100)

    model, (x, target) = zoo.Words(), zoo.words(ROWS, STEPS)
    compiled = over_time(model, 3, microbatches=2, loss_fn=padded)
    assert step_difference(model, compiled, [x], target, padded) < EXACT
    target = target.clone()
    target[1, 8:] = -100
    with pytest.raises(ScheduleError, match="cannot be cut under this loss"):
        compiled.step(x, target)


@pytest.mark.parametrize("microbatches", [1, 3])
def test_loss_weight_says_what_a_part_counts(microbatches: int) -> None:
    model, (x, target) = zoo.Words(), zoo.words(ROWS, STEPS)
    target[0, :7] = 2  # one chunk of a micro-batch has nothing to count
    compiled = over_time(
        model, 3, microbatches=microbatches, loss_fn=of_some, loss_weight=lambda part: float((part != 2).sum())
    )
    assert step_difference(model, compiled, [x], target, of_some) < EXACT


def test_metrics_beside_the_loss_are_refused_by_name() -> None:
    def with_metrics(scores: Tensor, target: Tensor) -> Any:
        return zoo.of_words(scores, target), {"hits": (scores.argmax(-1) == target).sum()}

    compiled = over_time(zoo.Words(), 2, microbatches=2, loss_fn=with_metrics)
    with pytest.raises(ArgumentError, match="metrics of chunks of time are not put together"):
        compiled.step(*zoo.words(ROWS, STEPS))


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_sum_need_not_say_that_it_is_one(chunks: int) -> None:
    def added(scores: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), target.flatten(), reduction="sum")

    model, (x, target) = zoo.Words(), zoo.words(ROWS, STEPS)
    compiled = over_time(model, chunks, microbatches=2, loss_fn=added)
    assert step_difference(model, compiled, [x], target, added) < EXACT


def test_without_a_loss_there_is_no_step() -> None:
    with pytest.raises(ArgumentError, match="give loss_fn="):
        over_time(zoo.Words(), 2).step(*zoo.words(ROWS, STEPS)[:1])


def test_nn_losses() -> None:
    class ClassesFirst(zoo.Words):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).transpose(1, 2)

    for loss_fn in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum")):
        model, (x, target) = ClassesFirst(), zoo.words(ROWS, STEPS)
        compiled = over_time(model, 3, microbatches=2, loss_fn=loss_fn)
        assert step_difference(model, compiled, [x], target, loss_fn) < EXACT
