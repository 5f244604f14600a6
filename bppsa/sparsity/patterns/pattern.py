"""Which entries of a transposed Jacobian may ever be non-zero: a static CSR structure, known from shapes alone."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


def starts_of(counts: Tensor) -> Tensor:
    """int64 [N + 1]: how many there are before each of N, and at last in all."""
    return torch.cat([counts.new_zeros(1, dtype=torch.int64), counts.cumsum(0)])


@dataclass(frozen=True, eq=False, repr=False)
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

    def __repr__(self) -> str:
        return f"Pattern {self.shape[0]} x {self.shape[1]}, {self.nnz:,} non-zeros"

    @classmethod
    def from_entries(cls, rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> Pattern:
        """The pattern with entries at these coordinates, int64 [E] each, in any order."""
        n, m = shape
        flat = torch.unique(rows * m + columns)  # sorted: row by row, columns ascending
        rows, columns = flat // max(m, 1), flat % max(m, 1)
        counts = torch.bincount(rows, minlength=n)
        return cls(starts_of(counts), columns, shape)

    @classmethod
    def from_mask(cls, mask: Tensor) -> Pattern:
        """The pattern of the True entries of a bool [N, M]."""
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

    @classmethod
    def repeated(cls, count: int, block: Pattern) -> Pattern:
        """`count` times `block` along the diagonal."""
        n, m = block.shape
        which = torch.arange(count)[:, None]
        columns = (which * m + block.indices).flatten()
        return cls(starts_of(block.indptr.diff().repeat(count)), columns, (count * n, count * m))

    @classmethod
    def kron(cls, a: Pattern, b: Pattern) -> tuple[Pattern, Tensor]:
        """The Kronecker product, and the place of each pair of entries in it, int64 [E of a, E of b]."""
        counts, entries = (tuple(p.indptr.diff() for p in (a, b)), tuple(torch.arange(p.nnz) for p in (a, b)))
        row_a, row_b = a.rows, b.rows
        within = entries[0] - a.indptr[row_a], entries[1] - b.indptr[row_b]
        before = (a.indptr[:-1] * b.nnz)[:, None] + counts[0][:, None] * b.indptr[:-1]  # entries before a row
        place = (before[row_a][:, row_b]).add_(within[0][:, None] * counts[1][row_b]).add_(within[1])
        columns = torch.empty(a.nnz * b.nnz, dtype=torch.int64)
        columns[place] = a.indices[:, None] * b.shape[1] + b.indices
        indptr = torch.cat([before.flatten(), torch.tensor([a.nnz * b.nnz])])
        return cls(indptr, columns, (a.shape[0] * b.shape[0], a.shape[1] * b.shape[1])), place

    def keep(self, kept: Tensor) -> Pattern:
        """Only the entries at which `kept`, bool [E], is True."""
        return Pattern(starts_of(kept)[self.indptr], self.indices[kept], self.shape)

    @property
    def nnz(self) -> int:
        return len(self.indices)

    @property
    def rows(self) -> Tensor:
        """The row of each entry, int64 [E]."""
        return torch.repeat_interleave(torch.arange(self.shape[0]), self.indptr.diff())

    @cached_property
    def digest(self) -> bytes:
        """A digest of all that the pattern is: equal patterns have equal ones."""
        content = hashlib.blake2b(repr(self.shape).encode(), digest_size=16)
        for part in (self.indptr, self.indices):
            content.update(part.contiguous().numpy().data)
        return content.digest()

    @cached_property
    def columns(self) -> Tensor:
        """`indices` as int32 [E]: half as much for a kernel to read."""
        return self.indices.to(torch.int32)

    def csr(self, values: Tensor) -> Tensor:
        """A torch CSR tensor [N, M] of values [E], or [B, N, M] of values [B, E]."""
        batch = values.shape[:-1]
        indptr, indices = (part.to(values.device).expand(*batch, -1) for part in (self.indptr, self.indices))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(indptr, indices, values, (*batch, *self.shape), check_invariants=False)

    def spread(self, values: Tensor) -> Tensor:
        """The dense matrix [N, M] of values [E], or [B, N, M] of values [B, E]; for small sizes."""
        dense = values.new_zeros(*values.shape[:-1], *self.shape)
        dense[..., self.rows.to(values.device), self.indices.to(values.device)] = values
        return dense

    def mask(self) -> Tensor:
        """The same as a bool [N, M]; for small sizes."""
        mask = torch.zeros(self.shape, dtype=torch.bool)
        mask[self.rows, self.indices] = True
        return mask

    def covers(self, mask: Tensor) -> bool:
        """Whether every True of `mask`, bool [N, M], is an entry."""
        return not (mask.cpu() & ~self.mask()).any()
