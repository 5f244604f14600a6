"""Transposed Jacobians: their static patterns, structured operators, algebra, and one rule an op.

What belongs here is plain torch that needs no graph: walking a graph with the rules is `fxpasses/jacobian.py`.
"""

from bppsa.sparsity.across import AcrossRows, Outer
from bppsa.sparsity.algebra import add, compose
from bppsa.sparsity.convolution import Convolution
from bppsa.sparsity.implicit import Implicit
from bppsa.sparsity.network import Link, Network
from bppsa.sparsity.operators import Dense, Diagonal, Identity, select
from bppsa.sparsity.pattern import Pattern
from bppsa.sparsity.rules import lookup, rule
from bppsa.sparsity.sparse import Sparse
from bppsa.sparsity.transposed import TransposedJacobian

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
