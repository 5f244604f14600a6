"""Which decisions the present call of a compiled model has taken: a list a thread, begun anew by each call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import nn

from bppsa.decisions import Decision, Report
from bppsa.frontend.state import show, state_of
from bppsa.plan.forward import Forward
from bppsa.plan.strategy import Strategy


class _ModelCall(NamedTuple):
    """owner: the compiled model that it is of. outer: the call that this one is in."""

    taken: list[Decision]
    strategy: Strategy | None
    forward: Forward | None
    owner: nn.Module | None
    outer: _ModelCall | None


class _ThreadCalls(threading.local):
    call: _ModelCall | None = None
    explaining = False


_thread = _ThreadCalls()


def note(*decisions: Decision) -> None:
    call = _thread.call
    if call is not None:
        call.taken.extend(decisions)


@contextmanager
def collecting(
    strategy: Strategy | None = None, forward: Forward | None = None, *, explained: bool = False
) -> Iterator[list[Decision]]:
    """All decisions noted in this thread within the block. explained: with what only `explain` needs to know."""
    taken: list[Decision] = []
    push(taken, strategy, forward)
    before, _thread.explaining = _thread.explaining, explained
    try:
        yield taken
    finally:
        _thread.explaining = before
        pop()


@contextmanager
def unnoted() -> Iterator[list[Decision]]:
    """All decisions within the block, which are in no report unless whoever asked notes them."""
    outer, taken = _thread.call, list[Decision]()
    push(taken, None, None)
    try:
        yield taken
    finally:
        _thread.call = outer


def explaining() -> bool:
    return _thread.explaining


def strategy_of_model() -> Strategy | None:
    """The strategy of the compiled model whose call this thread is in."""
    return _thread.call and _thread.call.strategy


def forward_of_model() -> Forward | None:
    return _thread.call and _thread.call.forward


def push(
    taken: list[Decision], strategy: Strategy | None, forward: Forward | None, owner: nn.Module | None = None
) -> None:
    """Note decisions in `taken` until `pop`, and have scans follow `strategy` and `forward`."""
    outer = _thread.call
    if outer is not None:
        strategy, forward = strategy or outer.strategy, forward or outer.forward
    _thread.call = _ModelCall(taken, strategy, forward, owner, outer)


def begin(module: nn.Module) -> None:
    """Note decisions in a report of `module`'s own, a compiled model's, until `pop`."""
    state = state_of(module)
    taken = list(state.left)
    show(module, Report(taken))
    strategy, forward = state.asked or (None, None)
    push(taken, strategy, forward, module)


def is_called(module: nn.Module) -> bool:
    """Whether this thread is in a call that is noted in the module's own report."""
    call = _thread.call
    while call is not None:
        if call.owner is module:
            return True
        call = call.outer
    return False


def end(module: nn.Module) -> None:
    """`pop`, if the call has begun: another's hook may have raised before that."""
    if _thread.call is not None and _thread.call.owner is module:
        pop()


def pop() -> None:
    """Go back to the call before; what an inner call has decided, the outer one has too."""
    assert _thread.call is not None
    taken, *_, outer = _thread.call
    _thread.call = outer
    if outer is not None:
        outer.taken.extend(taken)
