"""What a kernel moves and computes, counted on the kernel itself."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from bppsa.codegen.language.expr import STRUCTURAL, Access
from bppsa.codegen.language.ir import Kernel, Kind, Reduce


class Traffic(NamedTuple):
    """What a kernel loads, stores and evaluates for a row and step.

    folded: the flops of groups that sum what they evaluate along axes; `flops` are those of all other groups."""

    bytes: int
    flops: int
    folded: int


def traffic(kernel: Kernel, real: str) -> Traffic:
    """What one row and step come to: what it loads and stores of memory that holds every step, and what it multiplies,
    adds and evaluates. A value that two groups load counts once: it stays in registers."""
    kinds = kernel.kinds
    touched: set[tuple[str, bool, int]] = set()
    wide: dict[tuple[str, bool, int], int] = {}  # what moves along several axes, by where it begins: its columns
    flops = folded = 0
    for group in kernel.groups:
        accesses = [node.payload for node in group.nodes() if isinstance(node.payload, Access)]
        for access in (*accesses, *(store.target for store in group.stores)):
            if kinds[access.buffer] not in (Kind.STREAM, Kind.STATE):
                continue
            if access.strides:
                moves = (size for size, stride in zip(group.shape, access.strides, strict=True) if stride)
                wide[access.buffer, access.after, access.column] = prod(moves)
            else:
                width = 1 if access.broadcast else group.width
                touched |= {(access.buffer, access.after, access.column + j) for j in range(width)}
        evaluated = group.width * sum(node.op not in STRUCTURAL for node in group.nodes())
        if group.shape and any(store.reduce is not Reduce.NONE for store in group.stores):
            folded += evaluated
        else:
            flops += evaluated
        flops += group.width * sum(2 * kernel.buffer(dot.weight).depth for dot in group.dots)
    moved = (len(touched) + sum(wide.values())) * {"float": 4, "double": 8}[real]
    return Traffic(moved, flops, folded)
