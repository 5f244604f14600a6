"""The exponential of a small matrix of each row: a polynomial of the matrix made small, squared as often as needed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bppsa.fxpasses.spelling.matrices import check, identity, product
from bppsa.sparsity.rules.matrix_ops import CHECKED, as_one

SMALL = 0.25  # of such a size the rest of the series is below a rounding: 0.25^13 / 13! = 2e-18
DEGREE = 12
SQUARINGS = 8  # of a larger matrix than these allow PyTorch decides


def matrix_exp(a: Tensor) -> Tensor:
    check(a)
    size = a.detach().abs().sum(-1).amax(-1)
    size = as_one(CHECKED, torch.where(size <= SMALL * 2**SQUARINGS, size, math.nan)).unsqueeze(-1).unsqueeze(-1)
    larger = [size > SMALL * 2**i for i in range(SQUARINGS)]
    scale = torch.ones_like(size)
    for each in larger:
        scale = torch.where(each, scale * 0.5, scale)
    found = series(a * scale)
    for each in larger:
        found = torch.where(each, product(found, found), found)
    return found


def series(a: Tensor) -> Tensor:
    """The sum of a^k / k! up to the degree, by powers of a^3 (Paterson and Stockmeyer)."""
    square = product(a, a)
    cube = product(square, a)
    one = torch.where(identity(a), 1.0, torch.zeros_like(a))
    found = one / math.factorial(DEGREE)
    for k in range(DEGREE - 3, -1, -3):
        lower = one / math.factorial(k) + a / math.factorial(k + 1) + square / math.factorial(k + 2)
        found = product(found, cube) + lower
    return found
