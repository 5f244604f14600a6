"""Checkpoints: written under one schedule and number of ranks, loaded under another or by PyTorch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from bppsa import trainer
from bppsa.distributed.script import checkpoints
from bppsa.errors import ArgumentError
from tests.workers import scripts, support
from tests.workers.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("in_float64")


def test_a_run_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    """Draws, running statistics, rates and moments too."""
    expected = scripts.saved(0, "one_f_one_b", str(tmp_path))
    assert scripts.resumed(0, "one_f_one_b", str(tmp_path)) == expected
    support.close(torch.tensor(scripts.resumed(0, "ddp", str(tmp_path))), torch.tensor(expected))


@pytest.mark.parametrize("loader", ["fsdp", pytest.param("one_f_one_b", marks=pytest.mark.slow)])
def test_ranks_and_one_process_load_each_others(tmp_path: Path, loader: str) -> None:
    first, second = run_ranks(scripts.saved, 2, "one_f_one_b", str(tmp_path / "ranks"))
    assert first == second
    support.close(torch.tensor(scripts.resumed(0, "one_f_one_b", str(tmp_path / "ranks"))), torch.tensor(first))
    scripts.saved(0, "ddp", str(tmp_path / "one"))
    for found in run_ranks(scripts.resumed, 2, loader, str(tmp_path / "one")):
        support.close(torch.tensor(found), torch.tensor(first))


def test_pytorch_loads_it_alone(tmp_path: Path) -> None:
    run = scripts.Run("one_f_one_b", seed=1)
    run.train(range(2))
    place = trainer(run.model).save(tmp_path)
    model = scripts.noisy()
    state: dict[str, Any] = {"model": model.state_dict()}
    with checkpoints.alone():
        state_dict_loader.load(state, checkpoint_id=place, no_dist=True)
    support.close(dict(model.state_dict()), dict(run.model.state_dict()), 0)


@pytest.mark.parametrize("value", [Path("data"), torch.zeros(2).numpy(), [{"inner": min}, print], lambda: 0])
def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path, value: Any) -> None:
    run = scripts.Run("one_f_one_b", seed=1)
    place = trainer(run.model).save(tmp_path)
    run.train(range(1))
    with pytest.raises(ArgumentError, match=r"place= is or holds what torch\.load does not load"):
        trainer(run.model).save(tmp_path, epoch=3, place=value)
    assert checkpoints.newest(tmp_path) == place


def test_an_entry_that_was_not_saved_is_named(tmp_path: Path) -> None:
    run = scripts.Run("one_f_one_b", seed=1)
    trainer(run.model).save(tmp_path, epoch=3)
    before = scripts.Run("one_f_one_b", seed=2)
    expected = before.model.state_dict()["0.weight"].clone()
    with pytest.raises(ArgumentError, match=r"has no entry 'scheduler' to load; .* beside the model: epoch"):
        trainer(before.model).load(tmp_path, scheduler=before.scheduler)
    assert torch.equal(before.model.state_dict()["0.weight"], expected)


def test_ranks_are_told_of_what_fails_on_one(tmp_path: Path) -> None:
    assert run_ranks(scripts.failing, 2, str(tmp_path)) == [True, True]


def test_what_is_not_whole_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = scripts.Run("one_f_one_b", seed=1)
    assert trainer(run.model).load(tmp_path, run.optimizer) is None
    run.train(range(1))
    place = trainer(run.model).save(tmp_path, run.optimizer)
    run.train(range(1, 2))

    def fails(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space is left")

    monkeypatch.setattr(state_dict_saver, "save", fails)
    with pytest.raises(OSError, match="no space"):
        trainer(run.model).save(tmp_path, run.optimizer)
    assert checkpoints.newest(tmp_path) == place
    assert trainer(run.model).load(tmp_path, run.optimizer) == {}
    assert trainer(run.model).state_dict()["calls"] == 1
