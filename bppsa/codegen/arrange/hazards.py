"""Make a kernel safe to run block by block and in place.

The language commits a group's stores after all its loads, and a RUNNING load sees the previous step's value all step
long. Printed code stores as it goes. Where that could be seen, the store goes to a scratch buffer and a copy follows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from bppsa.codegen.language.expr import Access, Dot, Strides, contiguous, load, span
from bppsa.codegen.language.ir import FOLDS, Buffer, Group, Kernel, Kind, Reduce, Store


@dataclass(frozen=True)
class Touch:
    """Columns [start, stop) of a buffer's row that a group reads or writes. own: no two elements touch one column; j
    touches column start + j, or with strides moves by them."""

    buffer: str
    after: bool
    start: int
    stop: int
    own: bool
    strides: Strides = ()

    def meets(self, other: Touch) -> bool:
        same = (self.buffer, self.after) == (other.buffer, other.after)
        return same and self.start < other.stop and other.start < self.stop

    def clashes(self, other: Touch) -> bool:
        """Whether two elements of one group may touch the same column."""
        alike = self.own and other.own and (self.start, self.strides) == (other.start, other.strides)
        return self.meets(other) and not alike


def read(kernel: Kernel, group: Group) -> list[Touch]:
    """What all loads and dot products of the group touch."""
    found = []
    for node in group.nodes():
        if isinstance(access := node.payload, Access):
            if access.strides:
                found.append(_touch_axes(access, group))
                continue
            width = 1 if access.broadcast else group.width
            found.append(_touch(access, width, own=width == group.width))
        elif isinstance(term := node.payload, Dot):
            found.append(_touch(term.source, kernel.buffer(term.weight).depth, own=False))
    return found


def written(group: Group, store: Store) -> Touch | None:
    """None for column sums, which no group can read."""
    if store.reduce is Reduce.COLUMNS:
        return None
    if store.target.strides:
        return _touch_axes(store.target, group)
    if store.reduce in FOLDS:
        return _touch(store.target, 1, own=False)
    return _touch(store.target, group.width, own=True)


def _touch(access: Access, width: int, *, own: bool) -> Touch:
    return Touch(access.buffer, access.after, access.column, access.column + width, own)


def _touch_axes(access: Access, group: Group) -> Touch:
    own = sorted(zip(access.strides, group.shape, strict=True))
    apart = all(one * size <= other for (one, size), (other, _) in pairwise(own)) and own[0][0] > 0
    return Touch(access.buffer, access.after, *span(access, group.width, group.shape), apart, access.strides)


def staged(kernel: Kernel) -> Kernel:
    """An equal kernel whose stores may be done the moment their values are known, in any order of rows and columns."""
    running = {b.name for b in kernel.buffers if b.kind is Kind.RUNNING}
    late = running & _seen_too_early(kernel, running)
    buffers = list(kernel.buffers)
    groups: list[Group] = []
    at_the_end: list[Group] = []
    for group in kernel.groups:
        stores: list[Store] = []
        copies: list[Group] = []
        for store in group.stores:
            name = store.target.buffer
            if not (name in late if name in running else _clashes(kernel, group, store)):
                stores.append(store)
                continue
            width = 1 if store.reduce in FOLDS else group.width
            stage = Buffer(f"stage{len(buffers)}", Kind.SCRATCH, width)
            assert store.reduce is Reduce.NONE or not group.shape, "what is folded goes to scratch of its own"
            own = Access(stage.name, strides=contiguous(group.shape))
            buffers.append(stage)
            stores.append(replace(store, target=own))
            copy = Group(width, (Store(store.target, load(own)),), group.shape)
            (at_the_end if name in running else copies).append(copy)
        groups += [replace(group, stores=tuple(stores)), *copies]
    return replace(kernel, buffers=tuple(buffers), groups=(*groups, *at_the_end))


def _seen_too_early(kernel: Kernel, running: set[str]) -> set[str]:
    """RUNNING buffers whose stores another element of the group, or a later group of the same step, would see."""
    found = set()
    for i, group in enumerate(kernel.groups):
        for store in group.stores:
            touch = written(group, store)
            if touch is None or touch.buffer not in running:
                continue
            later = [r for g in kernel.groups[i + 1 :] for r in read(kernel, g)]
            if _clashes(kernel, group, store) or any(touch.meets(r) for r in later):
                found.add(touch.buffer)
    return found


def _clashes(kernel: Kernel, group: Group, store: Store) -> bool:
    """Whether storing early would be seen by another element of the group, or race with a store that comes before."""
    touch = written(group, store)
    if touch is None:
        return False
    before = [written(group, other) for other in group.stores[: group.stores.index(store)]]
    return any(touch.clashes(other) for other in [*read(kernel, group), *before] if other is not None)
