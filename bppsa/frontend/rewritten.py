"""Another class for a module: one of ours goes before its own, and whoever asks still sees the latter."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

from torch import nn
from torch.nn.utils import parametrize

from bppsa.decisions import RECORD
from bppsa.frontend.state import as_given


class Rewritten(nn.Module):
    """What our classes share: they are made anew where a module is unpickled or copied, with a record of its own."""

    _bppsa_before: tuple[type, ...]  # ours, in their order
    _bppsa_origin: type
    _bppsa_behind: tuple[type, ...] = ()  # PyTorch's, before which it goes, behind all of the user's

    def __prepare_scriptable__(self) -> nn.Module:
        """torch.jit.script compiles the source text of a forward, so it gets the module as it was."""
        return as_given(self, self._bppsa_origin)

    def __reduce_ex__(self, protocol: Any) -> Any:
        made: Any = super().__reduce_ex__(protocol)
        own = type(self).__dict__
        if "_bppsa_before" not in own:  # a parametrization, or a class of a user's, has been put before
            return made
        _, _, state, *rest = made
        if isinstance(state, dict) and RECORD in state:
            state = state | {RECORD: state[RECORD].of_clone()}
        return _blank, (own["_bppsa_before"], own["_bppsa_origin"]), state, *rest


def put_before(module: nn.Module, cls: type[Rewritten]) -> None:
    """Give `module` a class made of `cls` and of what it is."""
    module.__class__ = with_before(cls, type(module))


def with_before(cls: type[Rewritten], own: type) -> type:
    """A class made of `cls` and of `own`."""
    if issubclass(own, cls):
        return own
    before: tuple[type, ...] = own.__dict__.get("_bppsa_before", ())
    return _made((cls, *before), own.__dict__.get("_bppsa_origin", own))


def take_away(module: nn.Module, cls: type[Rewritten]) -> None:
    """Undo `put_before`."""
    own = type(module).__dict__
    before: tuple[type, ...] = own.get("_bppsa_before", ())
    if cls in before:
        rest = tuple(kind for kind in before if kind is not cls)
        module.__class__ = _made(rest, own["_bppsa_origin"]) if rest else own["_bppsa_origin"]


def kind_of(module: nn.Module) -> type:
    """The class that its user has given it."""
    kind = _origin(type(module))
    return _origin(kind.__bases__[0]) if parametrize.is_parametrized(module) else kind


def _origin(cls: type) -> type:
    origin: type = cls.__dict__.get("_bppsa_origin", cls)
    return origin


# While anything is of it. It holds the class that it is made of, whose number is then no other's.
_classes: WeakValueDictionary[tuple[tuple[type, ...], int], type] = WeakValueDictionary()


def _made(before: tuple[type, ...], origin: Any) -> type:
    found = _classes.get((before, id(origin)))
    if found is None:
        found = _classes[before, id(origin)] = _make(before, origin)
    return found


def _make(before: tuple[type[Rewritten], ...], origin: Any) -> type:
    names = {name: getattr(origin, name) for name in ("__module__", "__qualname__", "__doc__")}
    own = {**names, "_bppsa_before": before, "_bppsa_origin": origin, **_forward(before, origin)}
    if nn.Module in _layout(origin) and not any(kind._bppsa_behind for kind in before):
        return type(origin.__name__, (*before, origin), own)
    kind: Any = type(origin)
    return _ordering(kind)(origin.__name__, (origin,), own)


def _layout(cls: type | None) -> Iterator[type]:
    """The class, and those that its objects have their place in memory from: of several bases one counts, the first."""
    while cls is not None:
        yield cls
        cls = cls.__base__


class _Ordering(type):
    """A metaclass: objects are laid out as those of the user's class, such as one of `ABC` and then nn.Module, which is
    the only base. Only so may a module get the class. The order in which methods are looked up puts ours before the
    user's classes, or behind them."""

    def mro(cls) -> list[type]:
        first, *others = super().mro()
        ours = vars(cls).get("_bppsa_before", ())
        before, behind = ([kind for kind in ours if bool(kind._bppsa_behind) is each] for each in (False, True))
        stops = {base for kind in behind for base in kind._bppsa_behind}
        at = next((i for i, kind in enumerate(others) if kind in stops), len(others))
        found = [first, *_with_bases(before), *others[:at], *_with_bases(behind), *others[at:]]
        return list(reversed(dict.fromkeys(reversed(found))))


def _with_bases(kinds: Sequence[type]) -> Iterator[type]:
    """Classes of ours, and those of ours that they derive from."""
    return (kind for each in kinds for kind in each.__mro__ if issubclass(kind, Rewritten))


@functools.cache
def _ordering(kind: type) -> type:
    """Returns the metaclass for a class whose own is `kind`."""
    if issubclass(kind, _Ordering):
        return kind
    return _Ordering if kind is type else type(kind.__name__, (_Ordering, kind), {})


def _forward(before: tuple[type, ...], origin: Any) -> dict[str, types.FunctionType]:
    """The forward of a class of ours that asks for it, once more, with the signature of the user's."""
    own = vars(before[0]).get("forward") if vars(before[0]).get("_bppsa_signs") else None
    users = inspect.getattr_static(origin, "forward", None)
    if own is None or not isinstance(users, types.FunctionType):
        return {}
    forward = types.FunctionType(own.__code__, own.__globals__, own.__name__, own.__defaults__, own.__closure__)
    forward.__kwdefaults__, forward.__qualname__ = own.__kwdefaults__, own.__qualname__
    forward.__signature__ = inspect.signature(users)  # type: ignore[attr-defined]
    return {"forward": forward}


def _blank(before: tuple[type, ...], origin: type) -> Any:
    """An object of the class that waits for its state, for pickle and copy."""
    return object.__new__(_made(before, origin))
