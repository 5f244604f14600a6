"""Transposed Jacobians: their static patterns, structured operators, algebra, and one rule an op.

What belongs here is plain torch that needs no graph: walking a graph with the rules is `fxpasses/network/jacobian.py`.
"""

from bppsa.sparsity.algebra import add, compose
from bppsa.sparsity.operators.across import AcrossRows, Outer
from bppsa.sparsity.operators.convolution import Convolution
from bppsa.sparsity.operators.implicit import Implicit
from bppsa.sparsity.operators.network import Link, Network
from bppsa.sparsity.operators.simple import Dense, Diagonal, Identity, select
from bppsa.sparsity.operators.sparse import Sparse
from bppsa.sparsity.operators.transposed import TransposedJacobian
from bppsa.sparsity.patterns.pattern import Pattern
from bppsa.sparsity.rules import lookup, rule

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
