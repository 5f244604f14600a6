"""Another class for a module: one of ours goes before its own, and whoever asks still sees the latter."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn
from torch.nn.utils import parametrize


class Rewritten(nn.Module):
    """What our classes share: they are made anew where a module is unpickled or copied."""

    _bppsa_before: tuple[type, ...]  # ours, in their order
    _bppsa_origin: type

    def __reduce_ex__(self, protocol: Any) -> Any:
        own = type(self).__dict__
        if "_bppsa_before" not in own:  # a parametrization has been put before
            return super().__reduce_ex__(protocol)
        return _blank, (own["_bppsa_before"], own["_bppsa_origin"]), {**self.__dict__, "_bppsa_memo": None}


def is_reported(module: nn.Module) -> bool:
    """Whether it is a compiled model, and not only a part of one."""
    return "report" in module.__dict__


def put_before(module: nn.Module, cls: type[Rewritten]) -> None:
    """Give `module` a class made of `cls` and of what it is."""
    own = type(module).__dict__
    before: tuple[type, ...] = own.get("_bppsa_before", ())
    if cls not in before:
        module.__class__ = _made((cls, *before), own.get("_bppsa_origin", type(module)))


def kind_of(module: nn.Module) -> type:
    """The class that its user has given it."""
    kind = _origin(type(module))
    return _origin(kind.__bases__[0]) if parametrize.is_parametrized(module) else kind


def _origin(cls: type) -> type:
    origin: type = cls.__dict__.get("_bppsa_origin", cls)
    return origin


@functools.cache
def _made(before: tuple[type, ...], origin: Any) -> type:
    names = {name: getattr(origin, name) for name in ("__module__", "__qualname__", "__doc__")}
    ours = {"_bppsa_before": before, "_bppsa_origin": origin, "_bppsa_forward": origin.forward}
    return type(origin.__name__, (*before, origin), {**names, **ours})


def _blank(before: tuple[type, ...], origin: type) -> Any:
    """For pickle and copy: an object of the class that waits for its state."""
    return object.__new__(_made(before, origin))
