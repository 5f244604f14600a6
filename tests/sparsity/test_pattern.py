import torch
from hypothesis import given
from hypothesis import strategies as st

from bppsa.sparsity import Pattern

sizes = st.integers(0, 6)


@given(n=sizes, m=sizes, seed=st.integers(0, 99))
def test_mask_round_trip(n, m, seed):
    mask = torch.rand(n, m, generator=torch.Generator().manual_seed(seed)) < 0.4
    pattern = Pattern.from_mask(mask)
    assert torch.equal(pattern.mask(), mask)
    assert pattern.nnz == mask.sum()
    assert pattern.indptr.tolist() == [0, *mask.sum(1).cumsum(0).tolist()]
    for row in range(n):
        columns = pattern.indices[pattern.indptr[row] : pattern.indptr[row + 1]].tolist()
        assert columns == sorted(columns)


@given(count=sizes, n=sizes, m=sizes)
def test_block_diagonal(count, n, m):
    blocks = torch.block_diag(*(torch.ones(n, m) for _ in range(count))) if count else torch.zeros(0, 0)
    pattern = Pattern.block_diagonal(count, n, m)
    assert pattern.shape == (count * n, count * m)
    assert torch.equal(pattern.mask(), blocks.bool().reshape(pattern.shape))


@given(n=sizes, m=sizes)
def test_identity_and_dense(n, m):
    assert torch.equal(Pattern.identity(n).mask(), torch.eye(n, dtype=torch.bool))
    assert Pattern.dense(n, m).mask().all()
    assert Pattern.dense(n, m).shape == (n, m)


def test_from_entries_sorts_and_merges():
    pattern = Pattern.from_entries(torch.tensor([2, 0, 2, 2]), torch.tensor([1, 3, 0, 1]), (3, 4))
    assert pattern.indptr.tolist() == [0, 1, 1, 3]
    assert pattern.indices.tolist() == [3, 0, 1]
    assert pattern.rows.tolist() == [0, 2, 2]


def test_one_per_row_and_column_are_transposes():
    places = torch.tensor([3, 0, 0, 2])
    assert torch.equal(Pattern.one_per_row(places, 5).mask(), Pattern.one_per_column(places, 5).mask().T)


def test_covers():
    pattern = Pattern.identity(3)
    assert pattern.covers(torch.diag(torch.tensor([True, False, True])))
    assert not pattern.covers(torch.ones(3, 3, dtype=torch.bool))
