"""Gradients that hold kept entries alone: to whoever uses them they are PyTorch's dense ones."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import bppsa
from bppsa.runtime.sparse_conv.gradient import KeptGradient, gradient_of
from bppsa.runtime.sparse_conv.kept import KeptValues
from tests.pruned.support import holds_all

SIZE = torch.Size((6, 4, 3, 3))
PLACES = torch.arange(1, SIZE.numel(), 7, dtype=torch.int32)


def made(seed: int = 0) -> KeptGradient:
    values = torch.randn(len(PLACES), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return gradient_of(KeptValues(values, PLACES, SIZE))


def dense(seed: int = 0) -> Tensor:
    return copy.deepcopy(made(seed).to_dense())


OPS: dict[str, Callable[[Tensor], Any]] = {
    "scale": lambda g: g.mul_(0.5),
    "scale by a tensor": lambda g: g.mul_(torch.tensor(2.0)),
    "divide": lambda g: g.div_(3),
    "divide by zero": lambda g: g.div_(0),
    "divide by numbers": lambda g: g.div_(dense(3)),
    "other numbers": lambda g: setattr(g, "data", dense(5)),
    "scale by NaN": lambda g: g.mul_(float("nan")),
    "scale by infinity": lambda g: g.mul_(torch.tensor(float("inf"))),
    "add infinitely often": lambda g: g.add_(like(g, made(1)), alpha=float("inf")),
    "scale by numbers": lambda g: g.mul_(dense(3)),
    "zero": lambda g: g.zero_(),
    "negative": lambda g: -g,
    "clone": lambda g: g.clone(),
    "clone in another order": lambda g: g.clone(memory_format=torch.channels_last),
    "add": lambda g: g + like(g, made(1)),
    "add in place": lambda g: g.add_(like(g, made(1)), alpha=2),
    "add of another pattern": lambda g: g.add_(
        like(g, gradient_of(KeptValues(torch.ones(2).double(), PLACES[:2], SIZE)))
    ),
    "add a number": lambda g: g.add_(1),
    "decay": lambda g: g.add(dense(2), alpha=0.1),
    "add numbers": lambda g: g.add_(dense(2), alpha=0.1),
    "add to numbers": lambda g: dense(2).add_(g, alpha=3),
    "add to numbers in another order": lambda g: dense(2).to(memory_format=torch.channels_last).add_(g),
    "add to another dtype": lambda g: dense(2).float().add_(g),
    "add to more": lambda g: torch.zeros(2, *SIZE).double().add_(g),
    "norm": lambda g: torch.linalg.vector_norm(g),
    "smallest": lambda g: torch.linalg.vector_norm(g, -float("inf")),
    "norms": lambda g: torch.linalg.vector_norm(g, dim=0),
    "write a row": lambda g: g[0].fill_(2),
    "write through another name": lambda g: g.detach().view(-1)[3:9].mul_(4).add_(1),
    "write some": lambda g: g.masked_fill_(dense(4) > 0, 1),
    "read": lambda g: g[1, 2] * 2,
    "multiply": lambda g: g.flatten(1) @ g.flatten(1).T,
    "many": lambda g: torch._foreach_add([g, g], [1, 2]),
    "many in place": lambda g: torch._foreach_mul_([g], 0.5),
    "other names": lambda g: g.detach().mul_(2),
}


def like(g: Tensor, other: KeptGradient) -> Tensor:
    """An operand of the same kind as the one that an op is tried on."""
    return other if isinstance(g, KeptGradient) else other.to_dense()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(sorted(OPS)), min_size=1, max_size=5))
def test_any_ops_do_what_they_do_to_dense_ones(names: list[str]) -> None:
    ours, theirs = made(), dense()
    for name in names:
        got, expected = OPS[name](ours), OPS[name](theirs)
        for a, b in ((got, expected), (ours, theirs)):
            for x, y in zip(*((v if isinstance(v, (list, tuple)) else [v]) for v in (a, b)), strict=True):
                if y is not None:
                    assert x.dtype is y.dtype
                    assert x.shape == y.shape
                    torch.testing.assert_close(copy.deepcopy(x) + 0, y, equal_nan=True, rtol=1e-12, atol=0)


def test_an_op_in_place_gives_its_own_tensor_back() -> None:
    g = made()
    assert g.mul_(2) is g
    assert g.mul_(float("nan")) is g
    assert holds_all(g)
    assert g.add_(1) is g


def test_what_asks_for_memory_gets_all_numbers() -> None:
    expected = dense()
    assert (made().numpy() == expected.numpy()).all()
    assert made().tolist() == expected.tolist()
    g = made()
    assert g.view(-1)[5:].data_ptr() == g.data_ptr() + 5 * 8
    assert g.untyped_storage().nbytes() == expected.numel() * 8
    assert f"{made().sum():.6f}" == f"{expected.sum():.6f}"
    assert torch.equal(torch.from_dlpack(made()), expected)
    assert f"{float(expected.flatten()[1]):.4f}" in repr(made())


def test_other_numbers_given_by_data() -> None:
    g = made()
    alias = g.detach()
    g.data = g.data * 2
    assert torch.equal(g + 0, dense() * 2)
    assert torch.equal(alias + 0, dense())
    g.data /= 4
    assert torch.equal(torch.from_numpy(g.numpy()), dense() / 2)
    g.data = made(3)
    assert torch.equal(g + 0, dense(3))
    g.data = dense(3).transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(g.mul_(2) + 0, dense(3) * 2)
    g.data = dense(3).float()
    assert g.dtype is (g + 0).dtype is torch.float32
    w, h = torch.ones(SIZE, dtype=torch.float64, requires_grad=True), made()
    y = (w * h).sum()
    h.data.mul_(2)  # behind autograd's back, as with any tensor
    y.backward()
    assert w.grad is not None


@pytest.mark.parametrize("change", ["resize_(3)", "transpose_(0, 1)", "unsqueeze_(0)"])
def test_what_it_cannot_become(change: str) -> None:
    g = made()
    with pytest.raises(bppsa.errors.InputError, match=r"assign a new tensor"):
        eval(f"g.{change}")
    assert torch.equal(g + 0, dense())
    with pytest.raises(RuntimeError, match="data pointer"):  # C++ that reads memory by itself
        torch.utils.dlpack.to_dlpack(made())


def test_saved_and_copied_it_needs_no_bppsa() -> None:
    expected, buffer = dense(), io.BytesIO()
    torch.save({"momentum": made()}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)["momentum"]
    for copied in (loaded, pickle.loads(pickle.dumps(made()))):
        assert type(copied) is Tensor
        assert torch.equal(copied, expected)
    twin = copy.deepcopy(g := made())
    g.mul_(0)
    assert torch.equal(twin.to_dense(), expected)


def test_read_in_inference_mode_it_can_be_written_later() -> None:
    g = made()
    with torch.inference_mode():
        assert float(g.abs().max()) == float(dense().abs().max())
    g[0].mul_(2)
    (torch.ones(SIZE, dtype=torch.float64, requires_grad=True) * g[0]).sum().backward()
    assert torch.equal(g[0] + 0, dense()[0] * 2)


def test_threads_that_read_and_write_share_one_memory() -> None:
    size, places = torch.Size((1000, 100)), torch.arange(1000, dtype=torch.int32)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(50):
            g = gradient_of(KeptValues(torch.ones(1000), places, size))
            reading, writing = pool.submit(g.sum), pool.submit(lambda g=g: g.view(-1)[-10:].fill_(7))
            reading.result(), writing.result()
            assert g.view(-1)[-10:].tolist() == [7] * 10


def test_a_factor_beyond_its_dtype_makes_zeros_nan() -> None:
    g = gradient_of(KeptValues(torch.ones(2), PLACES[:2], SIZE))
    assert torch.equal(g.mul_(1e300).isnan(), gradient_of(KeptValues(torch.ones(2), PLACES[:2], SIZE)).to_dense() == 0)
