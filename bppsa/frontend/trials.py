"""What this thread is in: forwards of modules, and a call that is logged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class LoggedCall:
    """One call that is logged. has_inner: whether it called what would be looked at on its own, were it not logged.
    has_scan: whether that was a `bppsa.scan`."""

    has_inner = has_scan = False


class _ThreadTrial(threading.local):
    trial: LoggedCall | None = None
    logged: int = 0  # calls
    entered: tuple[Any, ...] = ()


_thread = _ThreadTrial()


@contextmanager
def trial() -> Iterator[LoggedCall]:
    before, _thread.trial = _thread.trial, LoggedCall()
    _thread.logged += 1
    try:
        yield _thread.trial
    finally:
        _thread.trial = before


def logged_calls() -> int:
    return _thread.logged


def is_logging() -> bool:
    return _thread.trial is not None


def is_tried() -> bool:
    """Whether a call around this one is logged, which is then told of this one."""
    if _thread.trial is None:
        return False
    _thread.trial.has_inner = True
    return True


def tell_of_scan() -> None:
    """Tells a call that is logged that a scan is within it, whose steps are no loop of the user's."""
    if _thread.trial is not None:
        _thread.trial.has_inner = _thread.trial.has_scan = True


@contextmanager
def entered(state: Any) -> Iterator[None]:
    """Within the forward of the module that `state` is of."""
    before, _thread.entered = _thread.entered, (*_thread.entered, state)
    try:
        yield
    finally:
        _thread.entered = before


def is_entered(state: Any) -> bool:
    return any(each is state for each in _thread.entered)
