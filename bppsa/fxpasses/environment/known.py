"""Environments of earlier calls: a walk is long, and the next call with the same cell only follows its trail."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Hashable, Iterator
from typing import Any

from bppsa.fxpasses.environment.libraries import owner
from bppsa.fxpasses.environment.moved import moved
from bppsa.fxpasses.environment.walk import Environment, environment_of

_known: dict[Hashable, tuple[weakref.ref[Any], Environment]] = {}
REMEMBERED = 64  # cells
CONTAINERS = {list, tuple, dict, OrderedDict, defaultdict, deque}  # Python's own


def known_environment(cell: Any, counts: bool = False, given: tuple[type, ...] = ()) -> Environment:
    """The environment of the cell, from an earlier call if all is still the same. counts, given: see
    `environment_of`."""
    root = owner(cell)
    key = id(root), getattr(cell, "__func__", None), counts, given
    found = _known.get(key)
    known = found[1] if found is not None and found[0]() is root else None
    if known is not None and known.trail.holds(root):
        return known
    environment = (known and moved(known, root)) or environment_of(cell, counts, given)
    if type(root).__weakrefoffset__:
        _known[key] = weakref.ref(root, functools.partial(forget, _known, key)), environment
        for oldest in list(_known)[:-REMEMBERED]:
            _known.pop(oldest, None)
    return environment


def forget(known: dict[Any, tuple[weakref.ref[Any], Environment]], key: Hashable, gone: weakref.ref[Any]) -> None:
    found = known.get(key)
    if found is not None and found[0] is gone:  # else the address has been given to another cell since
        known.pop(key, None)


def containers(spec: Any) -> tuple[type, ...]:
    """The classes of the containers that arguments are in, but for Python's own: code calls their methods, and has to
    name none of them. spec: the arguments' in a pytree."""
    return tuple(dict.fromkeys(kind for kind in kinds(spec) if kind not in CONTAINERS))


def kinds(spec: Any) -> Iterator[type]:
    if not spec.is_leaf():
        yield spec.context if spec.type is namedtuple else spec.type
    for inner in spec.children():
        yield from kinds(inner)
