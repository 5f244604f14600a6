"""Checkpoints of a scheduled model: what every rank owns, by torch.distributed.checkpoint, under the model's names.

A checkpoint is a folder, which has its name once it is whole: a rank that dies while it is written leaves the last one.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from bppsa.distributed.script.states import like

BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)
REST = "rest.pt"  # what is the same on all ranks
PARTIAL = ".partial"


class Sharing(Protocol):
    """The ranks, seen from one."""

    rank: int

    def share(self, value: Any) -> Any:
        """What each rank gives, by rank, once all have."""


def save(
    folder: Path,
    number: int,
    ranks: Sharing,
    model: nn.Module,
    optimizer: Optimizer | None,
    rest: Mapping[str, Any],
) -> Path:
    """Every rank calls it. number: of the checkpoint."""
    place = folder / f"{number:08d}"
    partial = place.with_suffix(PARTIAL)
    if ranks.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        torch.save(dict(rest), partial / REST)
    ranks.share(None)
    with alone():
        state_dict_saver.save(tensors(model, optimizer), checkpoint_id=partial, no_dist=not in_group())
    if ranks.rank == 0:
        shutil.rmtree(place, ignore_errors=True)
        partial.rename(place)
    ranks.share(None)
    return place


def newest(folder: Path) -> Path | None:
    """The checkpoint with the largest number."""
    found = [place for place in folder.glob("*") if place.name.isdigit() and (place / REST).exists()]
    return max(found, key=lambda place: int(place.name), default=None)


def load(place: Path, model: nn.Module, optimizer: Optimizer | None) -> dict[str, Any]:
    """Every rank calls it. Returns what is the same on all ranks."""
    found = tensors(model, optimizer)
    with alone():
        state_dict_loader.load(found, checkpoint_id=place, no_dist=not in_group())
    model.load_state_dict(like(model.state_dict(), found["model"]))
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, found["optimizer"], options=BY_NAME)
    rest: dict[str, Any] = torch.load(place / REST, weights_only=True)
    return rest


def tensors(model: nn.Module, optimizer: Optimizer | None) -> dict[str, Any]:
    """What this rank owns."""
    found: dict[str, Any] = {"model": dict(model.state_dict())}
    if optimizer is not None:
        found["optimizer"] = get_optimizer_state_dict(model, optimizer, options=BY_NAME)
    return found


def in_group() -> bool:
    return dist.is_available() and dist.is_initialized()


@contextmanager
def alone() -> Iterator[None]:
    """Without PyTorch's warning that there is one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
