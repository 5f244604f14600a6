"""The model that `bppsa.compile(model, schedule=...)` returns: the user's, in whose place a schedule is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from bppsa.decisions import RECORD
from bppsa.distributed.script.states import like
from bppsa.distributed.steps.trainer import Trainer
from bppsa.distributed.steps.training import Settings, Training
from bppsa.frontend.state import state_of

ADOPTED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
SHOWN = ("step", "clip_grad_norm_", "full_state_dict", "stages", "timeline", "measured", "predicted")  # of a Trainer's


class Scheduled(nn.Module):
    """Its Parameters, buffers, children, and their names are the model's, and so are its other attributes.

    Where the model has no such name, it has the trainer's: `step`, `stages`, ... So its class has none of these, and
    they are looked up last.
    """

    def __init__(self, model: nn.Module, settings: Settings, cut: Callable[..., Training]) -> None:
        super().__init__()
        self.__dict__.update({name: model.__dict__[name] for name in ADOPTED})
        state_of(self).scheduled = Trainer(self, model, settings, cut)
        self.training = model.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return trainer_of(self).outputs(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state as the model gives it: with its version, its extra state, its hooks, and what its class
        overrides."""
        return trainer_of(self).given.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """The whole model's, or what this rank owns of it."""
        trainer = trainer_of(self)
        elsewhere = set(trainer.names) - set(self.state_dict())
        own = like(state_dict, {name: value for name, value in state_dict.items() if name not in elsewhere})
        return trainer.given.load_state_dict(own, strict, assign)

    def _load_from_state_dict(self, *args: Any) -> None:
        """Loads the state as a part of another module."""
        trainer_of(self).given._load_from_state_dict(*args)

    def __setattr__(self, name: str, value: Any) -> None:
        given = owner_of(self, name)
        if given is None:
            super().__setattr__(name, value)
        else:
            setattr(given, name, value)  # the forward reads it there

    def __delattr__(self, name: str) -> None:
        given = owner_of(self, name)
        if given is None:
            super().__delattr__(name)
        else:
            delattr(given, name)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)  # a Parameter, a buffer or a child
        except AttributeError:
            trainer = state_of(self).scheduled
            if trainer is None or name.startswith("__"):  # a copy that waits for its state, or a question of Python's
                raise
            try:
                return getattr(trainer.given, name)
            except AttributeError:
                if name not in SHOWN:
                    raise
        return getattr(trainer, name)


class ScheduledContainer(Scheduled):
    """Stands for a model that holds modules by place or by name, as nn.Sequential does: Python looks for these methods
    in a class."""

    def __getitem__(self, key: Any) -> Any:
        return held_by(self)[key]

    def __len__(self) -> int:
        return len(held_by(self))

    def __iter__(self) -> Iterator[Any]:
        return iter(held_by(self))

    def __contains__(self, value: Any) -> bool:
        return value in held_by(self)


CONTAINS = ("__getitem__", "__len__", "__iter__")


def kind_for(model: nn.Module) -> type[Scheduled]:
    return ScheduledContainer if all(hasattr(type(model), name) for name in CONTAINS) else Scheduled


def trainer_of(model: Scheduled) -> Trainer:
    found: Trainer = state_of(model).scheduled
    return found


def held_by(model: Scheduled) -> Any:
    """The model that is cut, as what holds others."""
    return trainer_of(model).given


def owner_of(model: Scheduled, name: str) -> nn.Module | None:
    """The model that is cut, where this is an attribute of its own; None where it is one of what stands for it."""
    trainer = state_of(model).scheduled if RECORD in model.__dict__ else None
    if trainer is None or name in model.__dict__:
        return None
    given: nn.Module = trainer.given
    return None if hasattr(type(model), name) and name not in vars(given) else given
