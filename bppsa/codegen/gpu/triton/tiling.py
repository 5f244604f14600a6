"""Where a group's columns are cut into tiles: a tile that is read just as it was written costs nothing to read.

What several gates write as one is often read one by one, and the other way round; so every edge of a load or a store is
an edge for all groups that touch those columns, as long as the tiles do not become narrow.
"""

from __future__ import annotations

import functools
from bisect import bisect
from collections.abc import Iterator
from itertools import pairwise

from bppsa.codegen.gpu.triton.columns import LEAST, blocks
from bppsa.codegen.language.expr import Access
from bppsa.codegen.language.ir import Group, Kernel, Reduce

Tiles = tuple[tuple[int, int], ...]  # (first column, columns)


@functools.lru_cache(maxsize=256)
def tiles(kernel: Kernel) -> tuple[Tiles, ...]:
    """The tiles of each group."""
    cuts = [[0, group.width] for group in kernel.groups]
    touched = [list(columns(group)) for group in kernel.groups]
    grown = True
    while grown:
        edges: dict[str, set[int]] = {}
        for cut, accesses in zip(cuts, touched, strict=True):
            for access in accesses:
                edges.setdefault(access.buffer, set()).update(access.column + edge for edge in cut)
        found = [
            sorted({edge - access.column for access in accesses for edge in edges[access.buffer]})
            for accesses in touched
        ]
        grown = any([add(cut, edge) for cut, new in zip(cuts, found, strict=True) for edge in new])
    return tuple(
        tuple((low + at, width) for low, high in pairwise(cut) for at, width in blocks(high - low)) for cut in cuts
    )


def columns(group: Group) -> Iterator[Access]:
    """Loads and stores of which element j touches column + j."""
    for node in group.nodes():
        if isinstance(node.payload, Access) and not node.payload.broadcast:
            yield node.payload
    for store in group.stores:
        if store.reduce is Reduce.NONE:
            yield store.target


def add(cut: list[int], edge: int) -> bool:
    """Put `edge` among the sorted `cut`, if that leaves no narrow tile; whether it did."""
    at = bisect(cut, edge)
    if not 0 < at < len(cut) or edge - cut[at - 1] < LEAST or cut[at] - edge < LEAST:
        return False
    cut.insert(at, edge)
    return True
