"""Carries of whole numbers and truth values alone: a real number beside, which stays zero, gives a sweep its dtype."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bppsa.frontend.cell.checks import CellFunction, with_zero
from bppsa.frontend.cell.plans import WHOLE

REAL = (torch.float32, torch.float64)


def with_real_carry(cell: CellFunction, carry: Any, xs: Any) -> tuple[CellFunction, Any] | None:
    """The cell and its carry with the number beside; None where the carry has one of its own, or no rows."""
    leaves: Sequence[Any] = pytree.tree_leaves(carry)
    if not leaves or not all(isinstance(leaf, Tensor) and leaf.dim() and leaf.dtype in WHOLE for leaf in leaves):
        return None
    given = [leaf.dtype for leaf in pytree.tree_leaves(xs) if isinstance(leaf, Tensor) and leaf.dtype in REAL]
    dtype = next(iter(given), torch.get_default_dtype())
    zero = torch.zeros(len(leaves[0]), 1, dtype=dtype, device=leaves[0].device)
    return functools.partial(with_zero, cell), (carry, zero)
