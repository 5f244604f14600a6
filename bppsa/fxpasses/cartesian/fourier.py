"""Discrete Fourier transforms of a few places, as products with matrices of cosines and sines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa.errors import Unsupported
from bppsa.fxpasses.cartesian.numbers import Cartesian, cartesian, each, multiply

MOST_PLACES = 64
ROOT, WHOLE = 1, 2  # what PyTorch calls dividing by the root of the number of places, and by the number


def waves(places: int, rows: int, columns: int, sign: int, dtype: torch.dtype) -> Cartesian:
    """exp(sign 2 pi i j k / places) for j < rows, k < columns."""
    if places > MOST_PLACES:
        raise Unsupported(f"transforms {places} places, more than {MOST_PLACES}", mend="transform x before the scan")
    turns = torch.arange(rows).unsqueeze(1) * torch.arange(columns) % places
    angle = turns.to(dtype) * (2 * math.pi / places)
    return Cartesian(torch.cos(angle), torch.sin(angle) * sign)


def scale(places: int, normalization: int) -> float:
    return {ROOT: 1 / math.sqrt(places), WHOLE: 1 / places}.get(normalization, 1.0)


def along(z: Cartesian, dim: int, rows: int, columns: int, places: int, sign: int) -> Cartesian:
    """The transform of one dimension."""
    last = each(lambda part: part.movedim(dim, -1), z)
    like: Any = last.re if isinstance(last.re, Tensor) else last.im
    found = multiply(last, waves(places, rows, columns, sign, like.dtype), torch.matmul)
    return each(lambda part: part.movedim(-1, dim), found)


def of_real(x: Any, dims: Sequence[int], normalization: int, onesided: bool) -> Cartesian:
    z = cartesian(x)
    factor = 1.0
    for i, dim in enumerate(reversed(dims)):
        n = z.re.shape[dim]
        z = along(z, dim, n, n // 2 + 1 if onesided and i == 0 else n, n, -1)
        factor *= scale(n, normalization)
    return each(lambda part: part * factor, z)


def of_complex(z: Any, dims: Sequence[int], normalization: int, forward: bool) -> Cartesian:
    z = cartesian(z)
    factor = 1.0
    for dim in dims:
        n = (z.im if z.re is None else z.re).shape[dim]
        z = along(z, dim, n, n, n, -1 if forward else 1)
        factor *= scale(n, normalization)
    return each(lambda part: part * factor, z)


def to_real(z: Any, dims: Sequence[int], normalization: int, n: int) -> Tensor:
    """The real signal of n places of half of its transform: what is between the ends counts twice."""
    *others, last = dims
    z = of_complex(z, others, normalization, False) if others else cartesian(z)
    half = n // 2 + 1
    count = torch.arange(half)
    ends = torch.logical_or(count == 0, count * 2 == n).unsqueeze(1)

    def signal(part: Tensor | None, waving: Tensor) -> Tensor | None:
        doubled = torch.where(ends, waving, waving * 2)
        return None if part is None else part.movedim(last, -1) @ doubled

    like: Any = z.im if z.re is None else z.re
    re, im = waves(n, half, n, -1, like.dtype)
    parts = [part for part in (signal(z.re, re), signal(z.im, im)) if part is not None]
    return sum(parts[1:], parts[0]).movedim(-1, last) * scale(n, normalization)
