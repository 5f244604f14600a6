"""Sums over the columns of a row, taken apart so that they need not wait for each other.

    sum_j (a_j + u b_j) = sum_j a_j + u sum_j b_j

where u, the same for all j, is known only after another row sum of the step. All sums on the right can then be taken in
one pass over the columns: the gradient of a layer norm takes one instead of two.
"""

from __future__ import annotations

from collections.abc import Sequence

from bppsa.codegen.language.expr import Access, Expr, Op, topological
from bppsa.codegen.lowering.row import RowSegment

Terms = dict[Expr | None, Expr]  # by factor, None for 1: what is summed over the columns


def of_segments(segments: Sequence[RowSegment]) -> list[RowSegment]:
    """The same sum over fewer columns: those of equal width on top of each other."""
    merged: dict[int, Expr] = {}
    for segment in segments:
        known = merged.get(segment.width)
        merged[segment.width] = segment.expr if known is None else Expr(Op.ADD, known, segment.expr)
    return [RowSegment(width, expr) for width, expr in merged.items()]


def terms(expr: Expr) -> Terms:
    """What to sum instead of `expr`, where that waits for fewer row sums, else `expr` itself."""
    found = _terms(expr)
    waits = set().union(*(_row_sums(term) for term in found.values()))
    return found if waits < _row_sums(expr) else {None: expr}


def _terms(expr: Expr) -> Terms:
    if not _row_sums(expr):
        return {None: expr}
    if expr.op in (Op.ADD, Op.SUB):
        found, second = _terms(expr.args[0]), _terms(expr.args[1])
        for factor, term in second.items():
            if factor in found:
                found[factor] = Expr(expr.op, found[factor], term)
            else:
                found[factor] = term if expr.op is Op.ADD else Expr(Op.NEG, term)
        return found
    if expr.op is Op.NEG:
        return {factor: Expr(Op.NEG, term) for factor, term in _terms(expr.args[0]).items()}
    if expr.op is Op.MUL:
        for number, other in (expr.args, expr.args[::-1]):
            if number.uniform:
                late = bool(_row_sums(number))
                return dict(_scaled(factor, term, number, late) for factor, term in _terms(other).items())
    return {None: expr}


def _scaled(factor: Expr | None, term: Expr, number: Expr, late: bool) -> tuple[Expr | None, Expr]:
    if not late:
        return factor, Expr(Op.MUL, term, number)
    return number if factor is None else Expr(Op.MUL, factor, number), term


def _row_sums(expr: Expr) -> set[str]:
    """The row sums that an expression waits for, and other numbers of a row in scratch."""
    payloads = [node.payload for node in topological((expr,))]
    return {p.buffer for p in payloads if isinstance(p, Access) and p.broadcast and p.buffer.startswith("scratch")}
