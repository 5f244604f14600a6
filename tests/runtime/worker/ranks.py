"""Ranks with a transport between them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from bppsa.runtime.transport.group import GroupTransport
from bppsa.schedule.programs.messages import Item, Message
from tests.workers.ranks import run_ranks

LIMIT = 30.0  # seconds


def message(number: int, source: int, target: int) -> Message:
    return Message(Item("A", number, 0), source, target, number)


def run(size: int, body: Callable[..., Any], *args: Any, dies: Collection[int] = ()) -> list[Any]:
    """What body(transport, *args) returns on each of `size` ranks, as `run_ranks` does."""
    return run_ranks(_with_transport, size, body, args, timeout=LIMIT, dies=dies)


def _with_transport(rank: int, body: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    transport = GroupTransport()
    found = body(transport, *args)
    transport.close()
    return found
