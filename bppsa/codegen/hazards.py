"""Make a kernel safe to run block by block and in place.

The language commits a group's stores after all its loads, and a RUNNING load sees the previous step's value all step long.
Printed code stores as it goes. Where that could be seen, the store goes to a scratch buffer first and a copy follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bppsa.codegen.ir import Access, Buffer, Dot, Group, Kernel, Kind, Reduce, Store, load


def staged(kernel: Kernel) -> Kernel:
    """An equal kernel in which every store may be done the moment its value is known, in any order of rows and columns."""
    running = {b.name for b in kernel.buffers if b.kind is Kind.RUNNING}
    unsafe_running = {
        store.target.buffer
        for i, group in enumerate(kernel.groups)
        for store in group.stores
        if store.target.buffer in running
        and (_clashes(kernel, group, store) or any(_reads(kernel, later, store, group) for later in kernel.groups[i + 1 :]))
    }
    buffers, groups, at_the_end = list(kernel.buffers), [], []
    for group in kernel.groups:
        stores, copies = [], []
        for store in group.stores:
            name = store.target.buffer
            if name in running:
                unsafe = name in unsafe_running
            else:
                unsafe = _clashes(kernel, group, store)
            if not unsafe:
                stores.append(store)
                continue
            width = 1 if store.reduce is Reduce.ROWS else group.width
            stage = Buffer(f"stage{len(buffers)}", Kind.SCRATCH, width)
            buffers.append(stage)
            stores.append(replace(store, target=Access(stage.name)))
            copy = Group(width, (Store(store.target, load(Access(stage.name))),))
            (at_the_end if name in running else copies).append(copy)
        groups += [Group(group.width, tuple(stores)), *copies]
    return replace(kernel, buffers=tuple(buffers), groups=(*groups, *at_the_end))


def _span(store: Store, group: Group) -> range:
    width = 1 if store.reduce is Reduce.ROWS else group.width
    return range(store.target.column, store.target.column + width)


def _overlap(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def _loads(kernel: Kernel, group: Group) -> list[tuple[Access, range, bool]]:
    """(access, columns it touches, whether element j touches only its own column) of every operand of the group."""
    found = []
    for node in group.nodes():
        if isinstance(access := node.payload, Access):
            width = 1 if access.broadcast else group.width
            found.append((access, range(access.column, access.column + width), not access.broadcast))
        elif isinstance(term := node.payload, Dot):
            depth = kernel.buffer(term.weight).depth
            found.append((term.source, range(term.source.column, term.source.column + depth), False))
    return found


def _reads(kernel: Kernel, group: Group, store: Store, of: Group) -> bool:
    """Whether `group` reads what `store` of group `of` writes."""
    target = store.target
    return any(
        access.buffer == target.buffer and access.after == target.after and _overlap(columns, _span(store, of))
        for access, columns, _ in _loads(kernel, group)
    )


def _clashes(kernel: Kernel, group: Group, store: Store) -> bool:
    """Whether storing early would be seen by another element of the same group, or would race with an earlier store."""
    if store.reduce is Reduce.COLUMNS:
        return False
    target, span = store.target, _span(store, group)
    for access, columns, own in _loads(kernel, group):
        if (access.buffer, access.after) == (target.buffer, target.after) and _overlap(columns, span):
            if not own or columns != span or store.reduce is Reduce.ROWS:
                return True
    for other in group.stores[: group.stores.index(store)]:
        same = (other.target.buffer, other.target.after) == (target.buffer, target.after)
        if same and other.reduce is not Reduce.COLUMNS and _overlap(_span(other, group), span):
            if _span(other, group) != span or Reduce.ROWS in (other.reduce, store.reduce):
                return True
    return False


def splittable(kernel: Kernel) -> bool:
    """Whether threads may share the columns of a step: a sum over columns would need all of them."""
    return all(store.reduce is not Reduce.ROWS for group in kernel.groups for store in group.stores)


def barriers(kernel: Kernel, cuts: Sequence[tuple[int, ...]]) -> list[bool]:
    """Before which groups threads that share the columns must have met. Groups of equal `cuts` give a column to the same thread."""
    touched = [_touched(kernel, group, cut) for group, cut in zip(kernel.groups, cuts, strict=True)]
    meet = [False] * len(touched)
    since: list[set[_Touch]] = []
    for step in range(2):  # the second time round, what the step before did is known
        for i, now in enumerate(touched):
            if meet[i] or any(_conflict(a, b) for earlier in since for a in earlier for b in now):
                meet[i], since = True, []
            since.append(now)
        if step == 0:
            since = [_next_step(kernel, touches) for touches in since]
    return meet


@dataclass(frozen=True)
class _Touch:
    """Columns that a group reads or writes. `cut`: how they are shared by threads if element j touches only its own, else None."""

    buffer: str
    after: bool
    start: int
    stop: int
    writes: bool
    cut: tuple[int, ...] | None


def _touched(kernel: Kernel, group: Group, cut: tuple[int, ...]) -> set[_Touch]:
    kinds = {b.name: b.kind for b in kernel.buffers}
    touches = {
        _Touch(access.buffer, access.after, span.start, span.stop, False, (*cut, span.start) if own else None)
        for access, span, own in _loads(kernel, group)
        if kinds[access.buffer] is not Kind.VECTOR
    }
    for store in group.stores:
        if store.reduce is not Reduce.COLUMNS:
            target, span = store.target, _span(store, group)
            touches.add(_Touch(target.buffer, target.after, span.start, span.stop, True, (*cut, span.start)))
    return touches


def _next_step(kernel: Kernel, touches: set[_Touch]) -> set[_Touch]:
    """The same columns as the following step sees them: streams have moved on, a state's `after` has become its `before`."""
    seen = set()
    for touch in touches:
        kind = kernel.buffer(touch.buffer).kind
        if kind is Kind.STATE:
            if touch.after == kernel.along:
                seen.add(replace(touch, after=not touch.after))
        elif kind is not Kind.STREAM:
            seen.add(touch)
    return seen


def _conflict(a: _Touch, b: _Touch) -> bool:
    same = (a.buffer, a.after) == (b.buffer, b.after) and a.start < b.stop and b.start < a.stop
    return same and (a.writes or b.writes) and (a.cut is None or a.cut != b.cut)
