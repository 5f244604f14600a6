"""What every transposed Jacobian offers. The class is the structure: nothing is tagged, or checked at run time.

An op maps x [B, *n] to y [B, *m], each row by itself; with N and M the numbers of elements of a row, J^T is N x M for
every row. `mv` is read three ways (run, shape-checked on meta tensors, recorded into the backward kernel), so it is
plain ATen, without autograd and without decisions on data. It may return the dtype that promotion gives: whoever adds
cotangents up casts them to the argument's dtype, as PyTorch's engine does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Size, Tensor

from bppsa.sparsity.patterns.pattern import Pattern


class TransposedJacobian(ABC):
    """What every operator offers."""

    def __repr__(self) -> str:
        """One line; where rows have a J^T each, with their number."""
        (n, m), held = self.shape, "" if self.held == 1 else f", {self.held} of them"
        return f"{type(self).__name__} {n} x {m}, {self.nnz:,} non-zeros{held}"

    @property
    @abstractmethod
    def structure(self) -> str:
        """One of identity, diagonal, block-diagonal, sparse, dense, across rows."""

    @property
    @abstractmethod
    def in_size(self) -> Size:
        """[*n]: a row of the op's input, flattened the rows of J^T."""

    @property
    @abstractmethod
    def out_size(self) -> Size:
        """[*m]: a row of the op's output, flattened the columns of J^T."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return self.in_size.numel(), self.out_size.numel()

    @property
    @abstractmethod
    def held(self) -> int:
        """How many matrices are held: 1 where all rows of the batch share one (a batch of one does), else B."""

    @property
    @abstractmethod
    def pattern(self) -> Pattern:
        """The possible non-zeros, built on demand."""

    @property
    def nnz(self) -> int:
        """E, the number of possible non-zeros."""
        return self.pattern.nnz

    @abstractmethod
    def entries(self) -> Tensor:
        """The values in the order of the pattern: [E] where all rows share them, else [B, E]."""

    @abstractmethod
    def mv(self, g: Tensor) -> Tensor:
        """J^T g for every row: g [B, *m] to [B, *n]; for any number of rows where one J^T is held."""

    def mm(self, g: Tensor) -> Tensor:
        """J^T G: G [M, K], the same for every row, or [B, M, K]; to [B, N, K], or [N, K] where rows share G and J^T."""
        n = self.shape[0]
        columns = g.transpose(-1, -2)
        if self.held == 1:  # columns are rows of a larger batch
            product = self.mv(columns.reshape(-1, *self.out_size)).reshape(*columns.shape[:-1], n)
            return product.transpose(-1, -2)
        columns = columns.expand(self.held, -1, -1).reshape(self.held, -1, *self.out_size)
        return torch.vmap(self.mv, 1, 1)(columns).reshape(self.held, -1, n).transpose(1, 2)

    def dense(self) -> Tensor:
        """[N, M] where all rows of the batch share it, else [B, N, M]. For small sizes."""
        return self.pattern.spread(self.entries())

    def to_sparse_csr(self) -> Tensor:
        """Return it as torch's CSR tensor, of the shape of `dense`: every entry of the pattern is stored, also where it
        is 0."""
        return self.pattern.csr(self.entries())


class FromTensors(TransposedJacobian):
    """One of a dataclass that holds the op's input x [B, *n] and output [B, *m], or stand-ins of their shapes."""

    x: Tensor
    out: Tensor

    @property
    def in_size(self) -> Size:
        return self.x.shape[1:]

    @property
    def out_size(self) -> Size:
        return self.out.shape[1:]
