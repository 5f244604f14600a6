"""What users do with a model cut over time besides one step: evaluate, clip, save, go on, look at its timeline."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from bppsa.schedule.zoo.time_chunks import MIDDLES
from tests.machine import skip_without_lstm_of_bfloat16
from tests.workers.over_time import zoo
from tests.workers.over_time.support import EXACT, over_time, plain, step_difference, wanted, with_gradients

ROWS, STEPS = 4, 11


def prepared(K: int = 3, middle: str = "chain") -> tuple[zoo.Words, Any, Tensor, Tensor]:
    model, (x, target) = zoo.Words(), zoo.words(ROWS, STEPS)
    return model, over_time(model, K, middle, 2, loss_fn=zoo.of_words), x, target


def test_gradients_of_several_steps_add_up() -> None:
    model, compiled, x, target = prepared()
    expected = plain(model, [x], lambda scores: zoo.of_words(scores, target))
    compiled.step(x, target)
    compiled.step(x, target)
    for parameter, once in zip(model.parameters(), expected[1:], strict=True):
        assert once is not None
        torch.testing.assert_close(parameter.grad, 2 * once)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_gives_the_models_outputs(mode: Any) -> None:
    model, compiled, x, _ = prepared(4)
    with mode():
        torch.testing.assert_close(compiled(x), model(x))
    assert {d for _, _, d in compiled.measured.jobs} == {"F", "L"}


def test_a_step_returns_outputs_where_it_is_asked_to() -> None:
    model, compiled, x, target = prepared()
    loss, scores = compiled.step(x, target, return_outputs=True)
    torch.testing.assert_close(scores, model(x).detach())
    torch.testing.assert_close(loss, zoo.of_words(scores, target))


def test_other_lengths_and_batches_later() -> None:
    model, compiled, _, _ = prepared(3)
    for rows, steps in ((4, 11), (4, 3), (1, 40), (7, 12)):
        x, target = zoo.words(rows, steps)
        assert step_difference(model, compiled, [x], target, zoo.of_words) < EXACT


def test_gradients_are_clipped_as_torch_does() -> None:
    model, compiled, x, target = prepared()
    expected = plain(model, [x], lambda scores: zoo.of_words(scores, target))
    norm = torch.nn.utils.get_total_norm(expected[1:])  # type: ignore[arg-type]
    compiled.step(x, target)
    torch.testing.assert_close(compiled.clip_grad_norm_(0.1), norm)
    torch.testing.assert_close(
        torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]), torch.tensor(0.1)
    )


def test_state_is_the_models() -> None:
    model, compiled, x, target = prepared()
    other = zoo.Words()
    assert list(compiled.state_dict()) == list(model.state_dict()) == list(over_time_state(compiled, x))
    compiled.load_state_dict(other.state_dict())
    torch.testing.assert_close(compiled.step(x, target), zoo.of_words(other(x), target).detach())


def over_time_state(compiled: Any, x: Tensor) -> dict[str, Tensor]:
    """The full state of a model that has been cut, by a call."""
    with torch.no_grad():
        compiled(x)
    found: dict[str, Tensor] = compiled.full_state_dict()
    return found


def test_training_lowers_the_loss_as_one_workers() -> None:
    model, compiled, x, target = prepared()
    alone = copy.deepcopy(model)
    losses: list[list[float]] = [[], []]
    optimizers = [torch.optim.Adam(m.parameters(), 1e-2) for m in (compiled, alone)]
    for _ in range(10):
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses[0].append(compiled.step(x, target).item())
        loss = zoo.of_words(alone(x), target)
        loss.backward()
        losses[1].append(loss.item())
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(*losses)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("middle", sorted(MIDDLES))
@pytest.mark.parametrize("K", [1, 2, 4])
def test_the_timeline_is_what_was_simulated(K: int, middle: str) -> None:
    _, compiled, x, target = prepared(K, middle)
    compiled.step(x, target)
    planned, measured = compiled.timeline, compiled.measured
    assert set(measured.jobs) == set(planned.jobs)
    assert all(measured.worker[job] == planned.worker[job] == job[0] % K for job in measured.jobs)
    assert measured.peak_activations == planned.peak_activations == [3 * 2] * K  # three layers, two micro-batches
    for p, q in planned.graph.inputs():
        assert measured.end[measured.jobs[p]] <= measured.start[measured.jobs[q]]
    assert compiled.predicted.makespan <= measured.makespan


def test_dropout_draws_anew_each_step_and_the_same_under_every_middle() -> None:
    losses = []
    for middle in MIDDLES:
        torch.manual_seed(0)
        model, (x, target) = zoo.Words(dropout=0.5), zoo.words(ROWS, STEPS)
        compiled = over_time(model, 3, middle, 2, loss_fn=zoo.of_words, seed=1)
        losses.append([float(compiled.step(x, target).detach()) for _ in range(3)])
    assert len(set(losses[0])) == 3
    assert all(of_middle == losses[0] for of_middle in losses)


def test_dropout_has_its_gradient() -> None:
    """In evaluation none, and in training that of the very masks that the forward drew: by finite differences."""
    torch.manual_seed(0)
    model, (x, target) = zoo.Words(dropout=0.3), zoo.words(ROWS, STEPS)
    weight = model.first.weight_ih_l1  # behind a dropout between layers
    along = torch.randn_like(weight)

    def stepped(distance: float) -> tuple[float, Tensor]:
        compiled = over_time(model, 3, microbatches=2, loss_fn=zoo.of_words, seed=1)  # draws as a first step
        with torch.no_grad():
            weight.add_(along, alpha=distance)
        loss, *_ = found = with_gradients(lambda: compiled.step(x, target), wanted(model, [x]))
        with torch.no_grad():
            weight.sub_(along, alpha=distance)
        at = [p is weight for p in model.parameters()].index(True)
        assert loss is not None
        grad = found[1 + at]
        assert grad is not None
        return float(loss), grad

    (ahead, _), (behind, _), (_, grad) = stepped(1e-5), stepped(-1e-5), stepped(0.0)
    assert abs((ahead - behind) / 2e-5 - float((grad * along).sum())) < 1e-8
    model.eval()
    compiled = over_time(model, 3, microbatches=2, loss_fn=zoo.of_words)
    assert step_difference(model, compiled, [x], target, zoo.of_words) < EXACT


def test_batch_norm_in_evaluation() -> None:
    class Normed(zoo.Words):
        def __init__(self) -> None:
            super().__init__()
            self.batch = torch.nn.BatchNorm1d(zoo.HIDDEN)

        def forward(self, x: Tensor) -> Tensor:
            features = self.first(self.embedding(x))[0]
            return self.head(self.batch(features.transpose(1, 2)).transpose(1, 2))

    model, (x, target) = Normed().eval(), zoo.words(ROWS, STEPS)
    compiled = over_time(model, 3, microbatches=2, loss_fn=zoo.of_words)
    assert step_difference(model, compiled, [x], target, zoo.of_words) < EXACT


def test_autocast_is_the_callers() -> None:
    skip_without_lstm_of_bfloat16()
    torch.set_default_dtype(torch.float32)
    model, compiled, x, target = prepared()
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = compiled.step(x, target), zoo.of_words(model(x), target)
    torch.testing.assert_close(found, expected.detach(), atol=0.02, rtol=0.0)
    assert found != zoo.of_words(model(x), target)  # it was rounded


def test_a_copy_trains_by_itself() -> None:
    model, compiled, x, target = prepared()
    compiled.step(x, target)
    before = {name: p.clone() for name, p in model.named_parameters()}
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert twin.step(x, target) != compiled.step(x, target)
