"""All values of a J^T from few products with it: columns that share no row are read off one product together.

Colouring the columns so that no row meets a colour twice is Curtis, Powell and Reid's compression (On the estimation
of sparse Jacobian matrices, 1974); taken greedily in order, it is optimal for windows that slide over a line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Size, Tensor

from bppsa.sparsity.patterns.flat import flat
from bppsa.sparsity.patterns.pattern import Pattern


@dataclass(frozen=True, eq=False)
class Colouring:
    """colour: int64 [M] on the CPU, of each column; count: how many there are."""

    pattern: Pattern
    colour: Tensor
    count: int

    @classmethod
    def of(cls, pattern: Pattern) -> Colouring:
        colour = greedy(pattern)
        return cls(pattern, colour, int(colour.max()) + 1 if len(colour) else 0)

    def seeds(self, like: Tensor) -> Tensor:
        """[C, M]: for each colour the sum of its columns' unit vectors, in the dtype and on the device of `like`."""
        seeds = like.new_zeros(self.count, self.pattern.shape[1])
        seeds[self.colour.to(like.device), torch.arange(len(self.colour), device=like.device)] = 1
        return seeds

    def read(self, products: Tensor) -> Tensor:
        """The entries [..., E] from J^T times the seeds, [..., C, N]."""
        n = self.pattern.shape[0]
        place = self.colour[self.pattern.indices] * n + self.pattern.rows
        return products.flatten(-2).index_select(-1, place.to(products.device))


def greedy(pattern: Pattern) -> Tensor:
    """The least colour that no earlier column has in any of the column's rows, int64 [M]."""
    n, m = pattern.shape
    if pattern.nnz == 0 or int(pattern.indptr.diff().max()) <= 1:
        return torch.zeros(m, dtype=torch.int64)
    order = torch.argsort(pattern.indices, stable=True)
    rows = pattern.rows[order].tolist()
    ends = torch.bincount(pattern.indices, minlength=m).cumsum(0).tolist()
    taken = [0] * n  # the colours of a row as the bits of a number
    colours, start = [], 0
    for end in ends:
        met = 0
        for row in rows[start:end]:
            met |= taken[row]
        free = ~met & (met + 1)
        for row in rows[start:end]:
            taken[row] |= free
        colours.append(free.bit_length() - 1)
        start = end
    return torch.tensor(colours, dtype=torch.int64)


def coloured(mv: Callable[[Tensor], Tensor], pattern: Pattern, out_size: Size, rows: int, like: Tensor) -> Tensor:
    """The entries of an operator known by its product: [E] with rows = 1, else [B, E]."""
    colouring = Colouring.of(pattern)
    seeds = colouring.seeds(like).view(colouring.count, *out_size)
    if rows == 1:
        return colouring.read(flat(mv(seeds)))
    products = torch.vmap(lambda seed: mv(seed.expand(rows, *out_size)), out_dims=1)(seeds)  # [B, C, *n]
    return colouring.read(flat(products, 2))
