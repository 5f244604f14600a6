"""Rows of samples for linear algebra on a matrix of each row."""

import torch

from bppsa.sparsity.rules import matrix_ops as ops
from tests.sparsity.samples import SPARSE, B, Sample

N = 4
EYE = torch.eye(N, dtype=torch.bool)
BELOW = torch.ones(N, N, dtype=torch.bool).tril(-1)


def regular(r):
    return r(B, N, N) * 0.3 + EYE.double().roll(1, 0)


def definite(r):
    a = r(B, N, N)
    return a @ a.mT + EYE


def triangle(r):
    return (r(B, N, N) + 3 * EYE).tril()


def with_inverse(r):
    a = regular(r)
    return a, torch.linalg.inv(a)


def sample(op, make, structures):
    return Sample(op, make, structures, rtol=1e-11, narrow=torch.float32)


MATRIX_SAMPLES = [
    sample(ops.INVERSE, lambda r: (regular(r), EYE), (SPARSE, None)),
    sample(ops.CHOLESKY, lambda r: (definite(r), EYE, BELOW), (SPARSE, None, None)),
    sample(ops.LOWER_INVERSE, lambda r: (triangle(r), EYE, BELOW), (SPARSE, None, None)),
    sample(ops.GRAM_INVERSE, lambda r: (triangle(r), EYE), (SPARSE, None)),
    sample(ops.DETERMINANT, with_inverse, (SPARSE, None)),
    sample(ops.LOG_DETERMINANT, with_inverse, (SPARSE, None)),
    sample(ops.SIGN, with_inverse, (None, None)),
]
