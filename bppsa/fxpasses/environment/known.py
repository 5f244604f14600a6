"""Environments of earlier calls: a walk is long, and the next call with the same cell only follows its trail."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Hashable
from typing import Any

from bppsa.fxpasses.environment.libraries import owner
from bppsa.fxpasses.environment.moved import moved
from bppsa.fxpasses.environment.walk import Environment, environment_of

_known: dict[Hashable, tuple[weakref.ref[Any], Environment]] = {}
REMEMBERED = 64  # cells


def known_environment(cell: Any, counts: bool = False) -> Environment:
    """The environment of the cell, from an earlier call if all is still the same. counts: as `environment_of` has
    it."""
    root = owner(cell)
    key = id(root), getattr(cell, "__func__", None), counts
    found = _known.get(key)
    known = found[1] if found is not None and found[0]() is root else None
    if known is not None and known.trail.holds(root):
        return known
    environment = (known and moved(known, root)) or environment_of(cell, counts)
    if type(root).__weakrefoffset__:
        _known[key] = weakref.ref(root, functools.partial(forget, _known, key)), environment
        for oldest in list(_known)[:-REMEMBERED]:
            _known.pop(oldest, None)
    return environment


def forget(known: dict[Any, tuple[weakref.ref[Any], Environment]], key: Hashable, gone: weakref.ref[Any]) -> None:
    found = known.get(key)
    if found is not None and found[0] is gone:  # else the address has been given to another cell since
        known.pop(key, None)
