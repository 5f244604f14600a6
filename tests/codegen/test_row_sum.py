"""Row sums taken apart, so that few passes over the columns are enough."""

from __future__ import annotations

from bppsa.codegen.language.expr import Access, Expr, Op, const, load
from bppsa.codegen.language.ir import Reduce
from bppsa.codegen.lowering.row import RowSegment
from bppsa.codegen.lowering.row_sum import of_segments, terms
from tests.codegen.kernels import add, at, mul
from tests.codegen.programs import build
from tests.scan import zoo
from tests.scan.zoo import make


def total(index: int) -> Expr:
    """Another row sum of the step."""
    return load(Access(f"scratch{index}", broadcast=True))


def test_a_sum_that_waits_for_none_is_taken_as_it_is() -> None:
    value = mul(add(at("a"), at("b")), at("r", broadcast=True))
    assert terms(value) == {None: value}


def test_a_factor_that_comes_later_leaves_the_sum() -> None:
    assert terms(add(at("a"), mul(total(0), at("b")))) == {None: at("a"), total(0): at("b")}
    assert terms(mul(mul(at("a"), total(0)), const(-1))) == {total(0): mul(at("a"), const(-1))}


def test_what_has_one_factor_is_summed_together() -> None:
    late = mul(at("b"), total(0))
    assert terms(add(add(at("a"), late), late)) == {None: at("a"), total(0): add(at("b"), at("b"))}
    apart = terms(Expr(Op.SUB, at("a"), late))
    assert apart == {None: at("a"), total(0): Expr(Op.NEG, at("b"))}


def test_a_sum_that_has_to_wait_anyway_stays_whole() -> None:
    centred = Expr(Op.SUB, at("a"), total(0))
    assert terms(mul(centred, centred)) == {None: mul(centred, centred)}
    both = add(mul(centred, centred), mul(total(0), at("a")))
    assert terms(both) == {None: both}


def test_segments_of_one_width_are_added_up_first() -> None:
    segments = [RowSegment(4, at("a")), RowSegment(2, at("y")), RowSegment(4, at("b"))]
    assert of_segments(segments) == [RowSegment(4, add(at("a"), at("b"))), RowSegment(2, at("y"))]


def test_the_gradient_of_a_layer_norm_takes_one_pass() -> None:
    """Two after one another: that of the state, then those of all gates."""
    program = build(make(zoo.layer_norm))
    for kernel, passes in ((program.forward, 4), (program.backward, 2)):
        summing = [g for g in kernel.groups if any(store.reduce is Reduce.ROWS for store in g.stores)]
        assert len(summing) == passes
