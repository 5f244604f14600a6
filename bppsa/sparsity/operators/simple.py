"""Transposed Jacobians of the simplest structures: identity, diagonal and dense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Size, Tensor

from bppsa.sparsity.operators.transposed import FromTensors, TransposedJacobian
from bppsa.sparsity.patterns.flat import as_held, flat
from bppsa.sparsity.patterns.pattern import Pattern


@dataclass(frozen=True, eq=False, repr=False)
class Identity(FromTensors):
    """The op copies or reshapes the elements of a row, x [B, *n] to out [B, *m], N = M."""

    x: Tensor
    out: Tensor
    structure: ClassVar[str] = "identity"

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


@dataclass(frozen=True, eq=False, repr=False)
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
            return as_held(flat(numbers))
        return as_held(self.values())

    def mv(self, g: Tensor) -> Tensor:
        if isinstance(self.d, Tensor) or self.d != 1:
            g = g * self.d
        return g if self.mask is None else torch.where(self.mask, g, 0.0)

    def values(self) -> Tensor:
        """The diagonal itself, [B, N] or [1, N]."""
        ones = torch.ones(1, *self.in_size, dtype=self.reference.dtype, device=self.reference.device)
        return flat(self.mv(ones))

    def dense(self) -> Tensor:
        return torch.diag_embed(self.entries())


def select(mask: Tensor, x: Tensor, d: Tensor | float = 1.0) -> Diagonal:
    """Cotangents pass (times d) where `mask` is True, and nothing passes elsewhere; mask and x [B, *n]."""
    return Diagonal(d, like=x, mask=mask)


@dataclass(frozen=True, eq=False, repr=False)
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
