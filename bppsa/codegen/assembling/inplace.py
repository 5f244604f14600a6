"""Let saved values overwrite the pre-activations they were computed from: half a forward sweep's memory traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bppsa.codegen.language.expr import Access, Dot, Expr, rewrite, span
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Reduce, Store

ColumnSlot = tuple[str, int, int]  # buffer, column, width


def reuse_streams(forward: Kernel, backward: Kernel, private: Mapping[str, int], *others: Kernel) -> tuple[Kernel, ...]:
    """Move columns of "saved" into columns of `private` streams that only their own group reads, and nobody later.
    others: kernels that read nothing of these but what `backward` does."""
    moved: dict[int, Access] = {}  # column of "saved" -> where it goes
    taken: set[ColumnSlot] = set()
    pinned = {(b, c) for b, c, _ in reads(backward.groups) if b in private}
    around = [read for read in reads_of_axes(backward.groups) if read[0] in private]
    readers: dict[ColumnSlot, set[int]] = {}
    for at, group in enumerate(forward.groups):
        for slot in reads([group]):
            if slot[0] in private:
                readers.setdefault(slot, set()).add(at)
    for at, group in enumerate(forward.groups):
        for store in group.stores:
            if store.target.buffer != "saved" or store.reduce is not Reduce.NONE or group.shape:
                continue
            for slot in sorted(readers):
                buffer, column, width = slot
                free = slot not in taken and (buffer, column) not in pinned
                free = free and all(b != buffer or stop <= column or column + width <= low for b, low, stop in around)
                if free and width == group.width and max(readers[slot]) <= at and alone(slot, readers):
                    moved[store.target.column] = Access(buffer, column)
                    taken.add(slot)
                    break
    where, left = places(forward, moved)
    streams = {b.name: b for b in forward.buffers if b.name in private}
    declared = {**streams, "saved": Buffer("saved", Kind.STREAM, left)}
    return tuple(renamed(kernel, declared, where) for kernel in (forward, backward, *others))


def reads(groups: list[Group] | tuple[Group, ...]) -> set[ColumnSlot]:
    found = set()
    for group in groups:
        for node in group.nodes():
            payload = node.payload
            if isinstance(payload, Access):
                start, stop = span(payload, group.width, group.shape)
                found.add((payload.buffer, start, -1 if payload.strides else stop - start))
            elif isinstance(payload, Dot):
                found.add((payload.source.buffer, payload.source.column, -1))  # overlaps everything to its right
    return found


def reads_of_axes(groups: tuple[Group, ...]) -> set[ColumnSlot]:
    """(buffer, start, stop) of what loads of several axes may read."""
    nodes = [(node.payload, group) for group in groups for node in group.nodes()]
    wide = [(access, group) for access, group in nodes if isinstance(access, Access) and access.strides]
    return {(access.buffer, *span(access, group.width, group.shape)) for access, group in wide}


def alone(slot: ColumnSlot, readers: Mapping[ColumnSlot, set[int]]) -> bool:
    """No other range of columns that is read overlaps this one."""
    buffer, column, width = slot
    for other_buffer, other, extent in readers:
        if other_buffer != buffer or (other, extent) == (column, width):
            continue
        if extent < 0 or (other < column + width and column < other + extent):
            return False
    return True


def places(forward: Kernel, moved: Mapping[int, Access]) -> tuple[dict[int, Access], int]:
    """Where each column at which a saved value begins stands now, the ones left over packed together; and
    how many columns those take."""
    where, at = dict(moved), 0
    for group in forward.groups:
        for store in group.stores:
            if store.target.buffer == "saved" and store.target.column not in moved:
                where[store.target.column] = Access("saved", at)
                at += group.width
    return where, at


def renamed(kernel: Kernel, declared: dict[str, Buffer], where: Mapping[int, Access]) -> Kernel:
    def place(access: Access) -> Access:
        if access.buffer != "saved":
            return access
        start = max(column for column in where if column <= access.column)
        new = where[start]
        return replace(access, buffer=new.buffer, column=new.column + access.column - start)

    def moved(node: Expr) -> Expr | None:
        if isinstance(node.payload, Access):
            return Expr(node.op, payload=place(node.payload))
        if isinstance(node.payload, Dot):
            return Expr(node.op, payload=replace(node.payload, source=place(node.payload.source)))
        return None

    done: dict[Expr, Expr] = {}

    def group(old: Group) -> Group:
        stores = tuple(Store(place(s.target), rewrite(s.value, moved, done), s.reduce) for s in old.stores)
        return replace(old, stores=stores)

    known = {b.name: b for b in kernel.buffers} | declared
    return replace(kernel, buffers=tuple(known.values())).with_groups(map(group, kernel.groups))
