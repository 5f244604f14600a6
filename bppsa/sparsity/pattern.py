"""Which entries of a transposed Jacobian may ever be non-zero: a static CSR structure, known from shapes alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pattern:
    """CSR structure of an N x M matrix with E possible entries; the columns of a row ascend (BPPSA section 3.3).

    Args:
        indptr: int64 [N + 1] on the CPU; row n owns entries indptr[n] to indptr[n + 1].
        indices: int64 [E] on the CPU, the column of each entry.
        shape: (N, M).
    """

    indptr: Tensor
    indices: Tensor
    shape: tuple[int, int]

    @classmethod
    def from_entries(cls, rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> Pattern:
        """From the coordinates of the entries, int64 [E] each, in any order."""
        n, m = shape
        flat = torch.unique(rows * m + columns)  # sorted: row by row, columns ascending
        rows, columns = flat // max(m, 1), flat % max(m, 1)
        counts = torch.bincount(rows, minlength=n)
        return cls(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), columns, shape)

    @classmethod
    def from_mask(cls, mask: Tensor) -> Pattern:
        """From a bool [N, M]."""
        rows, columns = mask.cpu().nonzero(as_tuple=True)
        return cls.from_entries(rows, columns, (mask.shape[0], mask.shape[1]))

    @classmethod
    def one_per_row(cls, columns: Tensor, m: int) -> Pattern:
        """Row n has its only entry in column `columns[n]`, int64 [N]."""
        return cls(torch.arange(len(columns) + 1), columns, (len(columns), m))

    @classmethod
    def one_per_column(cls, rows: Tensor, n: int) -> Pattern:
        """Column m has its only entry in row `rows[m]`, int64 [M]."""
        return cls.from_entries(rows, torch.arange(len(rows)), (n, len(rows)))

    @classmethod
    def identity(cls, n: int) -> Pattern:
        return cls.one_per_row(torch.arange(n), n)

    @classmethod
    def dense(cls, n: int, m: int) -> Pattern:
        return cls.block_diagonal(1, n, m)

    @classmethod
    def block_diagonal(cls, count: int, n: int, m: int) -> Pattern:
        """`count` full blocks of n x m along the diagonal."""
        columns = torch.arange(count * m).view(count, 1, m).expand(count, n, m).reshape(-1)
        return cls(torch.arange(count * n + 1) * m, columns, (count * n, count * m))

    @property
    def nnz(self) -> int:
        return len(self.indices)

    @property
    def rows(self) -> Tensor:
        """The row of each entry, int64 [E]."""
        return torch.repeat_interleave(torch.arange(self.shape[0]), self.indptr.diff())

    @cached_property
    def digest(self) -> bytes:
        """Of all that the pattern is: equal patterns have equal digests."""
        content = hashlib.blake2b(repr(self.shape).encode(), digest_size=16)
        for part in (self.indptr, self.indices):
            content.update(part.contiguous().numpy().data)
        return content.digest()

    @cached_property
    def columns(self) -> Tensor:
        """`indices` as int32 [E]: half as much for a kernel to read."""
        return self.indices.to(torch.int32)

    def mask(self) -> Tensor:
        """The same as a bool [N, M]; for small sizes."""
        mask = torch.zeros(self.shape, dtype=torch.bool)
        mask[self.rows, self.indices] = True
        return mask

    def covers(self, mask: Tensor) -> bool:
        """Whether every True of `mask`, bool [N, M], is an entry."""
        return not (mask.cpu() & ~self.mask()).any()
