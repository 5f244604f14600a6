"""Checkpoints of a scheduled model: what every rank owns, by torch.distributed.checkpoint, under the model's names.

A checkpoint is a folder, which has its name once it is whole: a rank that dies while it is written leaves the last one.
"""

from __future__ import annotations

import io
import pickle
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from bppsa.distributed.script.groups import in_group
from bppsa.distributed.script.states import like
from bppsa.errors import ArgumentError

BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)
REST = "rest.pt"  # what is the same on all ranks
PARTIAL = ".partial"


class Sharing(Protocol):
    """The ranks, seen from one."""

    rank: int

    def all_gather(self, value: Any) -> Any:
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
        write_rest(rest, partial / REST)
    found = tensors(model, optimizer)
    ranks.all_gather(None)  # PyTorch's collectives know nothing of a rank that has failed
    with alone():
        state_dict_saver.save(found, checkpoint_id=partial, no_dist=not in_group())
    if ranks.rank == 0:
        shutil.rmtree(place, ignore_errors=True)
        partial.rename(place)
    ranks.all_gather(None)
    return place


def write_rest(rest: Mapping[str, Any], path: Path) -> None:
    """Raises ArgumentError where it could not be loaded again, with the entry of the others that is at fault."""
    if is_loadable(rest, path):
        return
    entry = next((name for name, one in rest["others"].items() if not is_loadable(one, io.BytesIO())), "others")
    raise ArgumentError(
        f"{entry}= is or holds what torch.load does not load with weights_only=True, so the checkpoint could not be "
        f"loaded; give tensors, numbers, texts, and lists and dicts of them, such as torch.from_numpy(array) or "
        f"str(path)"
    )


def is_loadable(value: Any, at: Path | io.BytesIO) -> bool:
    """It is written there."""
    try:
        torch.save(value, at)
        if isinstance(at, io.BytesIO):
            at.seek(0)
        torch.load(at, weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError):  # pickle raises the last two for functions and handles
        return False
    return True


def newest(folder: Path) -> Path | None:
    """The checkpoint with the largest number."""
    found = [place for place in folder.glob("*") if place.name.isdigit() and (place / REST).exists()]
    return max(found, key=lambda place: int(place.name), default=None)


def rest_of(place: Path, needed: Iterable[str]) -> dict[str, Any]:
    """What is the same on all ranks. Raises ArgumentError where one of the needed others is not in it."""
    rest: dict[str, Any] = torch.load(place / REST, weights_only=True)
    missing = [name for name in needed if name not in rest["others"]]
    if missing:
        there = ", ".join(rest["others"]) or "none"
        raise ArgumentError(f"{place} has no entry {missing[0]!r} to load; what was saved beside the model: {there}")
    return rest


def load(place: Path, ranks: Sharing, model: nn.Module, optimizer: Optimizer | None) -> None:
    """Every rank calls it."""
    found = tensors(model, optimizer)
    ranks.all_gather(None)  # PyTorch's collectives know nothing of a rank that has failed
    with alone():
        state_dict_loader.load(found, checkpoint_id=place, no_dist=not in_group())
    model.load_state_dict(like(model.state_dict(), found["model"]))
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, found["optimizer"], options=BY_NAME)


def tensors(model: nn.Module, optimizer: Optimizer | None) -> dict[str, Any]:
    """What this rank owns."""
    found: dict[str, Any] = {"model": dict(model.state_dict())}
    if optimizer is not None:
        found["optimizer"] = get_optimizer_state_dict(model, optimizer, options=BY_NAME)
    return found


@contextmanager
def alone() -> Iterator[None]:
    """Without PyTorch's warning that there is one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
