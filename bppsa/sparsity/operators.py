"""Transposed Jacobians as operators. The class is the structure: nothing is tagged, nothing is checked at run time.

An op maps x [B, *n] to y [B, *m], each row by itself; with N and M the numbers of elements of a row, J^T is N x M for
every row. `mv` is read three ways (run, shape-checked on meta tensors, recorded into the backward kernel), so it is
plain ATen, without autograd and without decisions on data. It may return the dtype that promotion gives: whoever adds
cotangents up casts them to the argument's dtype, as PyTorch's engine does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import torch
from torch import Size, Tensor

from bppsa.errors import InputError, Reason, Unsupported
from bppsa.sparsity.colour import coloured
from bppsa.sparsity.pattern import Pattern


class TransposedJacobian(ABC):
    """What every operator offers."""

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
        """J^T G: G [M, K], the same for every row, or [B, M, K]; to [B, N, K], or [N, K] where rows share G and J^T.

        Raises InputError (a RuntimeError) for another shape.
        """
        n, m = self.shape
        if g.dim() not in (2, 3) or g.shape[-2] != m or (g.dim() == 3 and self.held not in (1, len(g))):
            raise InputError(f"J^T is {n} x {m}: mm takes [{m}, K] or [B, {m}, K], not {list(g.shape)}")
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
        """As torch's CSR tensor, of the shape of `dense`: every entry of the pattern is stored, also where it is 0."""
        return self.pattern.csr(self.entries())


@dataclass(frozen=True, eq=False)
class Identity(TransposedJacobian):
    """The op copies or reshapes the elements of a row, x [B, *n] to out [B, *m], N = M."""

    x: Tensor
    out: Tensor
    structure: ClassVar[str] = "identity"

    @property
    def in_size(self) -> Size:
        return self.x.shape[1:]

    @property
    def out_size(self) -> Size:
        return self.out.shape[1:]

    @property
    def held(self) -> int:
        return 1

    @property
    def pattern(self) -> Pattern:
        return Pattern.identity(self.shape[0])

    def entries(self) -> Tensor:
        return torch.ones(self.shape[0], dtype=self.x.dtype, device=self.x.device)

    def mv(self, g: Tensor) -> Tensor:
        return g if self.in_size == self.out_size else g.reshape(g.shape[0], *self.in_size)

    def dense(self) -> Tensor:
        return torch.eye(self.shape[0], dtype=self.x.dtype, device=self.x.device)


@dataclass(frozen=True, eq=False)
class Diagonal(TransposedJacobian):
    """diag(d), and where a mask is given, the entries at which it is False are zero whatever d and the cotangent are.

    Args:
        d: [B, *n], [1, *n] where the batch shares it, or a number.
        like: a tensor [B, *n], needed for its shape where d is a number.
        mask: bool, shaped as d. It selects: a NaN or Inf at a dropped entry does not leak, as it would from 0 * g.
    """

    d: Tensor | float
    like: Tensor | None = None
    mask: Tensor | None = None
    structure: ClassVar[str] = "diagonal"

    @property
    def reference(self) -> Tensor:
        reference = self.d if self.like is None else self.like
        assert isinstance(reference, Tensor), "a Diagonal of a number needs `like`"
        return reference

    @property
    def in_size(self) -> Size:
        return self.reference.shape[1:]

    @property
    def out_size(self) -> Size:
        return self.in_size

    @property
    def held(self) -> int:
        held = [len(part) for part in (self.d, self.mask) if isinstance(part, Tensor)]
        return max(held, default=1)

    @property
    def pattern(self) -> Pattern:
        return Pattern.identity(self.shape[0])

    def entries(self) -> Tensor:
        if self.mask is not None and not isinstance(self.d, Tensor) and self.d == 1:
            numbers = self.mask.view(torch.uint8).to(self.reference.dtype)  # bool itself is ten times slower
            return numbers.view(-1) if len(numbers) == 1 else numbers.flatten(1)
        values = self.values()
        return values[0] if len(values) == 1 else values

    def mv(self, g: Tensor) -> Tensor:
        if isinstance(self.d, Tensor) or self.d != 1:
            g = g * self.d
        return g if self.mask is None else torch.where(self.mask, g, 0.0)

    def values(self) -> Tensor:
        """The diagonal itself, [B, N] or [1, N]."""
        ones = torch.ones(1, *self.in_size, dtype=self.reference.dtype, device=self.reference.device)
        return self.mv(ones).flatten(1)

    def dense(self) -> Tensor:
        return torch.diag_embed(self.entries())


def select(mask: Tensor, x: Tensor, d: Tensor | float = 1.0) -> Diagonal:
    """Cotangents pass (times d) where `mask` is True, and nothing passes elsewhere; mask and x [B, *n]."""
    return Diagonal(d, like=x, mask=mask)


@dataclass(frozen=True, eq=False)
class Dense(TransposedJacobian):
    """J^T held as values: w [N, M] shared by the batch (a weight), or [B, N, M].

    The sizes are (N,) and (M,) where not given.
    """

    w: Tensor
    sizes: tuple[Size, Size] | None = None
    structure: ClassVar[str] = "dense"

    @property
    def in_size(self) -> Size:
        return self.sizes[0] if self.sizes else self.w.shape[-2:-1]

    @property
    def out_size(self) -> Size:
        return self.sizes[1] if self.sizes else self.w.shape[-1:]

    @property
    def held(self) -> int:
        return 1 if self.w.dim() == 2 else len(self.w)

    @property
    def pattern(self) -> Pattern:
        return Pattern.dense(*self.shape)

    @property
    def nnz(self) -> int:
        return self.shape[0] * self.shape[1]

    def entries(self) -> Tensor:
        return self.dense().flatten(-2)

    def mv(self, g: Tensor) -> Tensor:
        flat = g if g.dim() == 2 else g.reshape(g.shape[0], self.shape[1])
        w = self.dense()
        product = flat.mm(w.t()) if w.dim() == 2 else w.bmm(flat.unsqueeze(2)).squeeze(2)
        return product if len(self.in_size) == 1 else product.reshape(g.shape[0], *self.in_size)

    def dense(self) -> Tensor:
        return self.w[0] if self.w.dim() == 3 and len(self.w) == 1 else self.w


@dataclass(frozen=True, eq=False)
class Implicit(TransposedJacobian):
    """J^T known by its product and its pattern, and never formed: slices, reductions, softmax.

    Args:
        x, out: the op's input [B, *n] and output [B, *m]; read for shape, dtype and device only.
        vjp: g [B, *m] to J^T g [B, *n].
        links: gives the pattern.
        shared: whether all rows have the same values. `vjp` takes any number of rows then.
        values: gives the entries; without it they are read off products with J^T.
    """

    x: Tensor
    out: Tensor
    vjp: Callable[[Tensor], Tensor]
    links: Callable[[], Pattern]
    structure: str = "sparse"
    shared: bool = False
    values: Callable[[], Tensor] | None = None

    @property
    def in_size(self) -> Size:
        return self.x.shape[1:]

    @property
    def out_size(self) -> Size:
        return self.out.shape[1:]

    @property
    def pattern(self) -> Pattern:
        return self.links()

    @property
    def held(self) -> int:
        return 1 if self.shared else self.x.shape[0]

    def entries(self) -> Tensor:
        if self.values is not None:
            return self.values()
        return coloured(self.vjp, self.pattern, self.out_size, self.held, self.x)

    def mv(self, g: Tensor) -> Tensor:
        return self.vjp(g)


class RowMixing(TransposedJacobian):
    """An argument without rows (a weight), or an op that mixes them: there is a VJP, but no matrix of a row."""

    structure: ClassVar[str] = "across rows"

    def refuse(self) -> NoReturn:
        raise Unsupported(Reason("has no transposed Jacobian of a row, as it works across rows", mend="kept as a VJP"))

    @property
    def in_size(self) -> Size:
        self.refuse()

    @property
    def out_size(self) -> Size:
        self.refuse()

    @property
    def held(self) -> int:
        self.refuse()

    @property
    def pattern(self) -> Pattern:
        self.refuse()

    def entries(self) -> Tensor:
        self.refuse()

    def dense(self) -> Tensor:
        self.refuse()


@dataclass(frozen=True, eq=False)
class AcrossRows(RowMixing):
    """vjp: a cotangent of the op's whole output to one of its whole input."""

    vjp: Callable[[Tensor], Tensor]

    def mv(self, g: Tensor) -> Tensor:
        return self.vjp(g)


@dataclass(frozen=True, eq=False)
class Outer(RowMixing):
    """The weight w [K, M] of x @ w: x [B, K], g [B, M] to x^T g, summed over the rows."""

    x: Tensor

    def mv(self, g: Tensor) -> Tensor:
        return self.x.t().mm(g)
