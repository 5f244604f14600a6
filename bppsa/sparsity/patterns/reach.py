"""The pattern of a network: which outputs an input can reach, by boolean products of the patterns of its ops.

A row of a pattern is the set of columns it holds, kept as the bits of one number. The row of a product is the union of
the rows that its entries name; rows that name the same ones are the same object, and are united once.
"""

from __future__ import annotations

import torch

from bppsa.sparsity.patterns.pattern import Pattern, starts_of

ReachingRows = list[int]
CHUNK = 1 << 24  # bits that are unpacked at once


def identity(m: int) -> ReachingRows:
    return [1 << column for column in range(m)]


def product(pattern: Pattern, rows: ReachingRows) -> ReachingRows:
    """The rows of `pattern` [N, K] times the matrix of which `rows` are the K rows."""
    ends, columns = pattern.indptr.tolist(), pattern.indices.tolist()
    known: dict[frozenset[int] | tuple[int, ...], int] = {}
    found, start = [], ends[0]
    for end in ends[1:]:
        names = tuple(columns[start:end])
        if names not in known:
            union = 0
            for row in {id(rows[k]): rows[k] for k in names}.values():
                union |= row
            known[names] = union
        found.append(known[names])
        start = end
    return found


def union(a: ReachingRows | None, b: ReachingRows) -> ReachingRows:
    return b if a is None else [x if x is y else x | y for x, y in zip(a, b, strict=True)]


def unpack(rows: ReachingRows, m: int) -> Pattern:
    """The pattern [N, M] of these rows."""
    width = -(-m // 8)
    bits = torch.arange(8)
    step = max(1, CHUNK // max(8 * width, 1))
    parts = []
    for start in range(0, len(rows), step):
        raw = b"".join(row.to_bytes(width, "little") for row in rows[start : start + step])
        packed = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.zeros(0, dtype=torch.uint8)
        mask = ((packed.view(-1, width, 1) >> bits) & 1).flatten(1)
        parts.append(mask.nonzero() + torch.tensor([start, 0]))
    places = torch.cat(parts) if parts else torch.zeros(0, 2, dtype=torch.int64)
    counts = torch.bincount(places[:, 0], minlength=len(rows))
    return Pattern(starts_of(counts), places[:, 1].contiguous(), (len(rows), m))
