"""Which decisions the present call of a compiled model has taken: a list a thread, begun anew by each call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from bppsa.plan.forward import Forward
from bppsa.plan.strategy import Strategy
from bppsa.report import Decision, Report

_thread = threading.local()


def note(decision: Decision) -> None:
    taken = getattr(_thread, "taken", None)
    if taken is not None:
        taken.append(decision)


@contextmanager
def collecting(
    strategy: Strategy | None = None, forward: Forward | None = None, *, explained: bool = False
) -> Iterator[list[Decision]]:
    """All decisions noted in this thread within the block. explained: with what only `explain` needs to know."""
    taken: list[Decision] = []
    push(taken, strategy, forward)
    before, _thread.explaining = explaining(), explained
    try:
        yield taken
    finally:
        _thread.explaining = before
        pop()


def explaining() -> bool:
    return getattr(_thread, "explaining", False)


def strategy_of_model() -> Strategy | None:
    """That of the compiled model whose call this thread is in."""
    return getattr(_thread, "strategy", None)


def forward_of_model() -> Forward | None:
    return getattr(_thread, "forward", None)


def push(taken: list[Decision], strategy: Strategy | None, forward: Forward | None) -> None:
    """Note decisions in `taken` until `pop`, and have scans follow `strategy` and `forward`."""
    before = getattr(_thread, "taken", None), strategy_of_model(), forward_of_model()
    _thread.outer = [*getattr(_thread, "outer", []), before]
    _thread.taken, _thread.strategy = taken, strategy or strategy_of_model()
    _thread.forward = forward or forward_of_model()


def begin(module: nn.Module) -> None:
    """Note decisions in a report of `module`'s own, a compiled model's, until `pop`."""
    own = module.__dict__
    taken = list(own.get("_bppsa_left", ()))
    own["report"] = Report(taken)
    push(taken, *own.get("_bppsa_asked", (None, None)))


def pop() -> None:
    """Go back to the list before; what an inner call has decided, the outer one has too."""
    if not getattr(_thread, "outer", None):
        return
    *_thread.outer, (before, _thread.strategy, _thread.forward) = _thread.outer
    if before is not None:
        before.extend(_thread.taken)
    _thread.taken = before
