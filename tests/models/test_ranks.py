"""The same models on two ranks of a process group: each has the gradients of what it owns, and together all."""

from __future__ import annotations

import pytest

from tests.models import on_ranks
from tests.models import support as ours
from tests.models.zoo import MODELS, marks
from tests.workers import support
from tests.workers.ranks import run_ranks


def slow(name: str) -> list[pytest.MarkDecorator]:
    return [] if name in ("gpt2", "tied lstm") else [pytest.mark.slow]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[*marks(name), *slow(name)]) for name in MODELS])
def test_trains_as_in_one_process(name: str) -> None:
    case = MODELS[name]
    ours.skip_without(case)
    ranks: list[on_ranks.Trained] = run_ranks(on_ranks.trained, 2, name, timeout=200)
    tolerance, model = ours.TOLERANCES[case.dtype], case.model()
    for step, seed in enumerate(on_ranks.SEEDS):
        expected = ours.serial(case, model, *case.batch(ours.ROWS, seed))
        whole = support.gradients(model)
        for found in ranks:
            ours.check_loss(case, found.losses[step], expected)
            support.same(found.gradients[step], {p: whole[p] for p in found.gradients[step]}, tolerance)
        assert {p for found in ranks for p in found.gradients[step]} == set(whole)
        ours.update(model)
        for found in ranks:
            assert list(found.states[step]) == list(model.state_dict())
            support.close(found.states[step], dict(model.state_dict()), tolerance)
        model.load_state_dict(ranks[0].states[step])  # as a batch norm over three rows makes much of what rounding does
