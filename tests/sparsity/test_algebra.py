"""Laws that every structure obeys, and every pair of structures: factories x laws."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Size
from torch.utils._python_dispatch import TorchDispatchMode

from bppsa.errors import Unsupported
from bppsa.sparsity import (
    AcrossRows,
    Dense,
    Diagonal,
    Identity,
    Implicit,
    Outer,
    Pattern,
    Sparse,
    add,
    compose,
    select,
)
from tests.breadth import examples
from tests.sparsity.samples import B as ROWS
from tests.sparsity.samples import Random


def window(r, n, m):
    """The J^T of a slice of the first m of n, or its transpose."""
    x, out = r(ROWS, n), r(ROWS, m)
    links = lambda: Pattern.from_mask(torch.eye(n, m, dtype=torch.bool))  # noqa: E731
    pad = torch.eye(m, n, dtype=torch.float64)
    return Implicit(x, out, lambda g: g @ pad, links)


def sparse(r, n, m, *batch):
    pattern = Pattern.from_mask(r.mask(n, m))
    return Sparse(r(*batch, pattern.nnz), pattern)


SQUARE = {
    "identity": lambda r, n: Identity(r(ROWS, n), r(ROWS, n)),
    "number": lambda r, n: Diagonal(-1.5, like=r(ROWS, n)),
    "diagonal": lambda r, n: Diagonal(r(ROWS, n)),
    "shared diagonal": lambda r, n: Diagonal(r(1, n)),
    "select": lambda r, n: select(r(ROWS, n) > 0, r(ROWS, n)),
    "scaled select": lambda r, n: select(r(ROWS, n) > 0, r(ROWS, n), r(ROWS, n)),
}
OPERATORS = {
    "shared dense": lambda r, n, m: Dense(r(n, m)),
    "dense": lambda r, n, m: Dense(r(ROWS, n, m)),
    "window": window,
    "shared sparse": sparse,
    "sparse": lambda r, n, m: sparse(r, n, m, ROWS),
}


@st.composite
def operators(draw, n=None, m=None):
    n = draw(st.integers(1, 5)) if n is None else n
    square = {name: lambda r, n, m, make=make: make(r, n) for name, make in SQUARE.items()} if m in (n, None) else {}
    name = draw(st.sampled_from([*OPERATORS, *square]))
    m = n if name in square else draw(st.integers(1, 5)) if m is None else m
    return (OPERATORS | square)[name](Random(draw(st.integers(0, 99))), n, m)


@st.composite
def chains(draw):
    a = draw(operators())
    return a, draw(operators(n=a.shape[1]))


@st.composite
def branches(draw):
    a = draw(operators())
    return a, draw(operators(n=a.shape[0], m=a.shape[1]))


def close(got, expected):
    torch.testing.assert_close(*torch.broadcast_tensors(got, expected), rtol=1e-12, atol=1e-12)


def check(op):
    n, m = op.shape
    matrix = op.dense().expand(ROWS, n, m)
    g = Random(7)(ROWS, *op.out_size)
    product = op.mv(g)
    assert product.shape == (ROWS, *op.in_size)
    close(product.flatten(1), (matrix @ g.reshape(ROWS, m, 1)).squeeze(2))
    assert op.pattern.shape == op.shape
    assert op.pattern.covers((matrix != 0).any(0))


@examples(300)
@given(operators())
def test_mv_and_pattern_agree_with_dense(op):
    check(op)


def check_product(a, b):
    product = compose(a, b)
    assert (product.in_size, product.out_size) == (a.in_size, b.out_size)
    close(product.dense(), a.dense() @ b.dense())
    check(product)


def check_sum(a, b):
    total = add(a, b)
    assert (total.in_size, total.out_size) == (a.in_size, a.out_size)
    close(total.dense(), a.dense() + b.dense())
    check(total)


@examples(400)
@given(chains())
def test_product_is_the_dense_product(pair):
    check_product(*pair)


@examples(400)
@given(branches())
def test_sum_is_the_dense_sum(pair):
    check_sum(*pair)


@pytest.mark.parametrize("left", SQUARE)
@pytest.mark.parametrize("right", SQUARE)
def test_diagonals_are_closed(left, right):
    a, b = SQUARE[left](Random(0), 4), SQUARE[right](Random(1), 4)
    both_identities = left == right == "identity"
    assert compose(a, b).structure == ("identity" if both_identities else "diagonal")
    assert add(a, b).structure == "diagonal"


def test_a_reshape_is_an_identity_that_changes_sizes():
    r = Random(0)
    x, out = r(ROWS, 6), r(ROWS, 2, 3)
    there, back, scale = Identity(x, out), Identity(out, x), Diagonal(r(ROWS, 2, 3))
    sizes = Size((6,)), Size((2, 3))
    assert compose(there, back).mv(x) is x
    check_product(there, scale)
    check_product(scale, back)
    check_product(Dense(r(5, 6)), there)
    check_product(there, Dense(r(6, 4), (sizes[1], Size((4,)))))
    check_sum(there, there)
    check_sum(there, Dense(r(6, 6), sizes))


def test_sparse_factors_stay_sparse():
    r = Random(0)
    pattern = Pattern.from_mask(torch.eye(6, 4, dtype=torch.bool))
    a, x, out = Sparse(r(pattern.nnz), pattern), r(ROWS, 6), r(ROWS, 2, 3)
    columns, rows = Diagonal(r(ROWS, 4)), select(r(ROWS, 2, 3) > 0, r(ROWS, 2, 3))
    chain = compose(compose(rows, compose(Identity(out, x), a)), columns)
    assert chain.structure == "sparse"
    assert chain.pattern is pattern  # scaled and renamed, never multiplied
    assert (chain.in_size, chain.out_size) == (Size((2, 3)), Size((4,)))
    assert compose(Identity(out, x), Diagonal(x)).structure == "sparse"
    assert add(a, a).pattern is pattern


def test_a_full_product_is_dense():
    r = Random(0)
    column, row = Pattern.dense(4, 1), Pattern.dense(1, 3)
    assert compose(Sparse(r(4), column), Sparse(r(ROWS, 3), row)).structure == "dense"


def test_diagonal_plus_dense_builds_no_diagonal_matrix():
    called = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(func)
            return func(*args, **(kwargs or {}))

    r = Random(0)
    with Watch():
        add(Diagonal(r(ROWS, 4)), Dense(r(4, 4)))
        add(Dense(r(ROWS, 4, 4)), Identity(r(ROWS, 4), r(ROWS, 4)))
    assert not {f for f in called if "diag_embed" in str(f) or "eye" in str(f)}


def test_selection_does_not_leak():
    mask = torch.tensor([[True, False]]).expand(ROWS, 2)
    bad = torch.full((ROWS, 2), torch.nan)
    op = compose(select(mask, bad), Dense(bad.new_full((2, 2), torch.inf)))
    assert op.dense()[:, 1].eq(0).all()
    assert select(mask, bad, bad).mv(bad)[:, 1].eq(0).all()


def test_sizes_that_do_not_match_are_refused():
    r = Random(0)
    with pytest.raises(Unsupported, match="compose"):
        compose(Dense(r(2, 3)), Dense(r(2, 3)))
    with pytest.raises(Unsupported, match="add"):
        add(Dense(r(2, 3)), Diagonal(r(ROWS, 2)))


@pytest.mark.parametrize("op", [AcrossRows(lambda g: g), Outer(torch.ones(3, 2))])
def test_across_rows_there_is_a_vjp_but_no_matrix(op):
    assert op.structure == "across rows"
    op.mv(torch.ones(3, 2))
    for read in (lambda: op.shape, lambda: op.pattern, lambda: op.in_size, op.dense, lambda: compose(op, op)):
        with pytest.raises(Unsupported, match="across rows"):
            read()
