"""Looks for threads that read what another one of the same program writes, with no barrier in between.

Triton's interpreter runs a program as one thread, which cannot show it. So its loads, stores and barriers are watched:
between two barriers no address may be written that another load or store touches, whose threads may be others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from triton.runtime.interpreter import InterpreterBuilder


class Watch:
    """Addresses that the present program has read and written since its threads met."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.meet()

    def meet(self) -> None:
        self.read: set[int] = set()
        self.written: set[int] = set()

    def touch(self, pointers: Any, mask: Any, *, writes: bool) -> None:
        taken = (
            pointers.data
            if mask is None
            else pointers.data[np.broadcast_to(mask.data.astype(bool), pointers.data.shape)]
        )
        now = set(np.asarray(taken).ravel().tolist())
        if clash := now & (self.read | self.written if writes else self.written):
            self.found.append(f"{'written' if writes else 'read'} without a barrier: {len(clash)} addresses")
        (self.written if writes else self.read).update(now)


@contextmanager
def watched() -> Iterator[Watch]:
    """While kernels run by Triton's interpreter."""
    watch, builder = Watch(), InterpreterBuilder
    kept = {name: getattr(builder, name) for name in ("create_masked_load", "create_masked_store", "set_grid_idx")}
    kept["create_barrier"] = builder.create_barrier

    def load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        watch.touch(pointers, mask, writes=False)
        return kept["create_masked_load"](self, pointers, mask, *rest)

    def store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        watch.touch(pointers, mask, writes=True)
        return kept["create_masked_store"](self, pointers, value, mask, *rest)

    def barrier(self: Any, *rest: Any) -> Any:
        watch.meet()
        return kept["create_barrier"](self, *rest)

    def another_program(self: Any, *rest: Any) -> Any:
        watch.meet()
        return kept["set_grid_idx"](self, *rest)

    watching = {"create_masked_load": load, "create_masked_store": store, "create_barrier": barrier}
    watching["set_grid_idx"] = another_program
    try:
        for name, function in watching.items():
            setattr(builder, name, function)
        yield watch
    finally:
        for name, function in kept.items():
            setattr(builder, name, function)
