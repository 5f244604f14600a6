"""Patterns and values to try sparse operators on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from bppsa.sparsity import Pattern, Sparse
from tests.sparsity.samples import Random


def random_pattern(r: Random, n: int, m: int, fill: float) -> Pattern:
    return Pattern.from_mask(torch.rand(n, m, generator=r.generator) < fill)


def values_of(r: Random, pattern: Pattern, *batch: int) -> Tensor:
    return r(*batch, pattern.nnz)


def dense(pattern: Pattern, values: Tensor) -> Tensor:
    return Sparse(values, pattern).dense()


@dataclass
class Convolution:
    """A square one without bias, and its J^T found by running it on the numbers of its own weights (einconv)."""

    weight: Tensor  # [O, I, k, k]
    size: int
    padding: int
    stride: int

    def __call__(self, x: Tensor) -> Tensor:
        return conv2d(x, self.weight, stride=self.stride, padding=self.padding)

    @property
    def matrix(self) -> Tensor:
        """[N, M], by the basis of the inputs."""
        n = self.weight.shape[1] * self.size**2
        basis = torch.eye(n, dtype=self.weight.dtype).view(n, -1, self.size, self.size)
        return self(basis).flatten(1)

    @property
    def pattern(self) -> Pattern:
        ones = Convolution(torch.ones_like(self.weight), self.size, self.padding, self.stride)
        return Pattern.from_mask(ones.matrix != 0)

    @property
    def values(self) -> Tensor:
        return self.matrix[self.pattern.rows, self.pattern.indices]


def convolution(r: Random, i: int, o: int, size: int, k: int, *, padding: int = 0, stride: int = 1) -> Convolution:
    return Convolution(r(o, i, k, k), size, padding, stride)
