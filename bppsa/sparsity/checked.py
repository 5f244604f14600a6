"""The public border of an operator: factors are checked here, so that no product inside pays for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Size, Tensor

from bppsa.errors import ArgumentError, InputError, kind_of
from bppsa.sparsity.operators.transposed import TransposedJacobian
from bppsa.sparsity.patterns.flat import flat
from bppsa.sparsity.patterns.pattern import Pattern


@dataclass(frozen=True, eq=False, repr=False)
class Checked(TransposedJacobian):
    """An operator as `bppsa.transposed_jacobian` gives it: as `operator`, but `mv` and `mm` take what fits only.

    Args:
        dtype, device: of the model's output, and so of what is multiplied.
    """

    operator: TransposedJacobian
    dtype: torch.dtype
    device: torch.device

    def __repr__(self) -> str:
        return repr(self.operator)

    @property
    def structure(self) -> str:
        return self.operator.structure

    @property
    def in_size(self) -> Size:
        return self.operator.in_size

    @property
    def out_size(self) -> Size:
        return self.operator.out_size

    @property
    def held(self) -> int:
        return self.operator.held

    @property
    def pattern(self) -> Pattern:
        return self.operator.pattern

    @property
    def nnz(self) -> int:
        return self.operator.nnz

    def entries(self) -> Tensor:
        return self.operator.entries()

    def dense(self) -> Tensor:
        return self.operator.dense()

    def mv(self, g: Tensor) -> Tensor:
        """J^T g for every row: g [B, *m] to [B, *n], [B, M] to [B, N], or of one sample [M] to [N].

        B is any number where all rows share one J^T. Raises InputError (a RuntimeError) for another shape, dtype or
        device, and ArgumentError (a TypeError) for what is no tensor.
        """
        (n, m), rows = self.shape, "B" if self.held == 1 else str(self.held)
        forms = dict.fromkeys(f"[{rows}{''.join(f', {size}' for size in sizes)}]" for sizes in (self.out_size, (m,)))
        one = [f"[{m}]"] if self.held == 1 else []
        self.check("mv", g, " or ".join([*forms, *one]), self.fits(g))
        if g.shape[1:] == self.out_size:
            return self.operator.mv(g)
        product = self.operator.mv(g.reshape(-1, *self.out_size))
        return product.reshape(n) if g.dim() == 1 else flat(product)

    def fits(self, g: object) -> bool:
        """Whether `mv` takes a tensor of this shape."""
        if not isinstance(g, Tensor):
            return False
        m = self.shape[1]
        if g.dim() and g.shape[1:] in (self.out_size, (m,)):
            return self.held in (1, len(g))
        return self.held == 1 and g.shape == (m,)

    def mm(self, g: Tensor) -> Tensor:
        """J^T G: G [M, K], the same for every row, or [B, M, K]; to [B, N, K], or [N, K] where rows share G and J^T.

        Raises as `mv` does.
        """
        m, rows = self.shape[1], "B" if self.held == 1 else str(self.held)
        fits = isinstance(g, Tensor) and g.dim() in (2, 3) and g.shape[-2] == m
        fits = fits and (g.dim() == 2 or self.held in (1, len(g)))
        self.check("mm", g, f"[{m}, K] or [{rows}, {m}, K]", fits)
        return self.operator.mm(g)

    def check(self, product: str, g: object, forms: str, fits: bool) -> None:
        n, m = self.shape
        takes = f"J^T is {n} x {m}: {product} takes {forms} {self.dtype} on {self.device}"
        if not isinstance(g, Tensor):
            raise ArgumentError(f"{takes}, not {kind_of(g)}")
        if not fits or (g.dtype, g.device) != (self.dtype, self.device):
            raise InputError(f"{takes}, not {list(g.shape)} {g.dtype} on {g.device}")
