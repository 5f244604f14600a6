"""Which rows of the next step a group should ask for: processors do not foresee jumps of whole steps through memory."""

from __future__ import annotations

from bppsa.codegen.ir import Access, Group, Kernel, Kind, Op


def fetched_ahead(kernel: Kernel) -> list[dict[Access, bool]]:
    """For each group the accesses to prefetch one step ahead -> whether they will be only written.

    A group with dot products has time for it: it also asks for what a group of the same width without any will touch.
    """
    own = [_from_memory(kernel, group) for group in kernel.groups]
    ahead: list[dict[Access, bool]] = [{} for _ in own]
    for i, group in enumerate(kernel.groups):
        busy = [j for j, g in enumerate(kernel.groups) if g.dots and g.width == group.width]
        target = i if group.dots or not busy else min(busy, key=lambda j: abs(j - i))
        for access, write in own[i].items():
            ahead[target].setdefault(access, write)
    return ahead


def _from_memory(kernel: Kernel, group: Group) -> dict[Access, bool]:
    kinds = {b.name: b.kind for b in kernel.buffers}
    loads = [node.payload for node in group.nodes() if node.op is Op.LOAD]
    found = {a: False for a in loads if kinds[a.buffer] is Kind.STREAM and not a.broadcast}
    for store in group.stores:
        if kinds[store.target.buffer] in (Kind.STREAM, Kind.STATE):
            found.setdefault(store.target, True)
    return found
