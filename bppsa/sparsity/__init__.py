"""Transposed Jacobians: their static patterns, structured operators, algebra, and one rule an op.

What belongs here is plain torch that needs no graph: walking a graph with the rules is `fxpasses/jacobian.py`.
"""

from bppsa.sparsity.algebra import add, compose
from bppsa.sparsity.convolution import Convolution
from bppsa.sparsity.network import Link, Network
from bppsa.sparsity.operators import (
    AcrossRows,
    Dense,
    Diagonal,
    Identity,
    Implicit,
    Outer,
    TransposedJacobian,
    select,
)
from bppsa.sparsity.pattern import Pattern
from bppsa.sparsity.rules import lookup, rule
from bppsa.sparsity.sparse import Sparse

__all__ = [
    "AcrossRows",
    "Convolution",
    "Dense",
    "Diagonal",
    "Identity",
    "Implicit",
    "Link",
    "Network",
    "Outer",
    "Pattern",
    "Sparse",
    "TransposedJacobian",
    "add",
    "compose",
    "lookup",
    "rule",
    "select",
]
