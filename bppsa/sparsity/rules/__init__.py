"""One rule an op: its transposed Jacobians, in plain torch; a file a family of ops.

Broadcasting is put in by the caller as an explicit expand, so a rule sees arguments of equal shape [B, *N], or Python
numbers. To add an op, write its rule (or its row in a family's table) and a row of samples in tests/sparsity.
What does not belong here: patterns of single ops (a rule's operator states its own) and anything about kernels.
"""

from bppsa.sparsity.rules import (
    conv,
    functions,
    linear,
    matrices,
    norm,
    own_gradient,
    pointwise,
    pool,
    rearrange,
    reduce,
    resize,
    shape,
)
from bppsa.sparsity.rules.registry import RULES, Rule, lookup, rule, rule_of

__all__ = [
    "RULES",
    "Rule",
    "conv",
    "functions",
    "linear",
    "lookup",
    "matrices",
    "norm",
    "own_gradient",
    "pointwise",
    "pool",
    "rearrange",
    "reduce",
    "resize",
    "rule",
    "rule_of",
    "shape",
]
