"""Kernels in which a value has to be the same number wherever it is computed.

A compiler makes one op of a product and a sum, without rounding between them, where it finds both: in one place of a
kernel, and not in another where the product is read a second time. Where values are compared, one that is equal to
itself has to be so; in such kernels the printers of C++ and CUDA have each product rounded before it is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bppsa.codegen.language.expr import EXPENSIVE, SPECIAL, Expr, Op
from bppsa.codegen.language.ir import Group, Reduce

COMPARES = frozenset({Op.LT, Op.LE, Op.EQ, Op.MAX, Op.MIN, Op.FLOOR, Op.FMOD})
SUMS = frozenset({Op.ADD, Op.SUB})
PRODUCTS = EXPENSIVE - SPECIAL - {Op.DOT, Op.DIV, Op.SQRT} | {Op.MUL, Op.NEG, Op.LDEXP}  # or may end in one


def compares(groups: Iterable[Group]) -> bool:
    """Whether it depends on which of two values is larger, or that they are equal."""
    groups = tuple(groups)
    folds = any(store.reduce is Reduce.MAX for group in groups for store in group.stores)
    return folds or any(node.op in COMPARES for group in groups for node in group.nodes())


def operands(node: Expr, names: Mapping[Expr, str], exact: bool) -> list[str]:
    """The text of what an op reads. exact: of a kernel that compares."""
    return [addend(arg, names[arg], exact and node.op in SUMS) for arg in node.args]


def addend(value: Expr, name: str, exact: bool) -> str:
    """The text of a value that is added to another."""
    return f"rounded({name})" if exact and value.op in PRODUCTS else name
