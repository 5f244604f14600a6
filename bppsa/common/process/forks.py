"""Repairs a forked child: it has none of its parent's threads, so a lock that one of them held would stay locked."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

F = TypeVar("F", bound=Callable[[], None])

_locked: WeakSet[Any] = WeakSet()


def in_children(function: F) -> F:
    """Have a function called in a forked child, where there are such."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function


def renewed_in_children(owner: Any) -> None:
    """Have `owner.renew_lock` called in a forked child."""
    _locked.add(owner)


@in_children
def renew_locks() -> None:
    for owner in _locked:
        owner.renew_lock()
