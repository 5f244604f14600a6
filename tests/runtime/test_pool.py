from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections import OrderedDict
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bppsa.runtime.pool import SMALLEST, Pool, size_class

NUMEL = 1 << 18  # float32: 1 MiB


@pytest.fixture
def pool() -> Pool:
    return Pool()


@given(st.integers(1, 1 << 40))
def test_size_class(nbytes: int) -> None:
    size = size_class(nbytes)
    assert nbytes <= size <= max(nbytes * 1.25, 8)
    assert size_class(size) == size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("numel", [0, 1, 100_003])
def test_what_take_gives(pool: Pool, numel: int, dtype: torch.dtype) -> None:
    taken = pool.take(numel, dtype)
    assert (taken.shape, taken.dtype, taken.device.type) == ((numel,), dtype, "cpu")
    assert taken.data_ptr() % 64 == 0
    assert not taken.requires_grad
    taken.zero_()
    assert not taken.any()


def test_small_ones_pass_by(pool: Pool) -> None:
    pool.take(SMALLEST // 4 - 1, torch.float32)
    assert pool.idle == 0


def test_used_again_for_any_dtype_of_the_size_class(pool: Pool) -> None:
    first = pool.take(NUMEL, torch.float32)
    second = pool.take(NUMEL, torch.float32)
    place = first.data_ptr()
    assert place != second.data_ptr()
    del first
    assert pool.idle == 4 * NUMEL
    again = pool.take(NUMEL // 2 - 5, torch.float64)
    assert again.data_ptr() == place
    assert pool.idle == 0


def test_any_tensor_on_the_bytes_keeps_them(pool: Pool) -> None:
    taken = pool.take(NUMEL, torch.float32)
    view = taken.view(-1, 64)[3:].t()
    del taken
    assert pool.idle == 0
    array = view.numpy()
    del view
    assert pool.idle == 0
    del array
    assert pool.idle == 4 * NUMEL


class Square(torch.autograd.Function):
    """Saves a buffer of the pool between forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pool: Pool) -> torch.Tensor:
        double = pool.take(x.numel(), x.dtype).view(x.shape)
        torch.mul(x, 2, out=double)
        ctx.save_for_backward(double)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (double,) = ctx.saved_tensors
        return gradient * double, None


def test_comes_back_when_backward_is_done(pool: Pool) -> None:
    x = torch.rand(NUMEL, requires_grad=True)
    y = Square.apply(x, pool).sum()
    y.backward(retain_graph=True)
    assert pool.idle == 0
    y.backward()
    assert pool.idle == 4 * NUMEL  # although y and its graph are still there
    assert torch.equal(x.grad, 4 * x)


def test_hooks_on_saved_tensors(pool: Pool) -> None:
    x = torch.rand(NUMEL, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.double(), lambda packed: packed.float()):
        y = Square.apply(x, pool).sum()
    assert pool.idle == 4 * NUMEL  # the hook's copy is saved, ours is free
    pool.take(NUMEL, torch.float32).fill_(float("nan"))
    y.backward()
    assert torch.equal(x.grad, 2 * x)


def test_bytes_from_inference_mode_serve_training(pool: Pool) -> None:
    with torch.inference_mode():
        place = pool.take(NUMEL, torch.float32).data_ptr()
    x = torch.rand(NUMEL, requires_grad=True)
    Square.apply(x, pool).sum().backward()
    assert torch.equal(x.grad, 2 * x)
    assert pool.take(NUMEL, torch.float32).data_ptr() == place


def test_default_device_is_not_ours(pool: Pool) -> None:
    with torch.device("meta"):
        assert pool.take(NUMEL, torch.float32).device.type == pool.take(1, torch.float32).device.type == "cpu"


def test_idle_bytes_are_bounded_and_the_least_recently_used_go_first() -> None:
    pool = Pool(largest_idle=4 * NUMEL)
    old = pool.take(NUMEL // 4, torch.float32)
    new = [pool.take(NUMEL // 2, torch.float32) for _ in range(2)]
    kept = {tensor.data_ptr() for tensor in new}
    del old
    assert pool.idle == NUMEL
    new.clear()
    assert pool.idle == 4 * NUMEL
    assert {pool.take(NUMEL // 2, torch.float32).data_ptr() for _ in range(2)} <= kept
    pool.take(2 * NUMEL, torch.float32)
    assert pool.idle <= 4 * NUMEL


def test_a_loan_that_ends_inside_the_pool_is_not_lost(pool: Pool) -> None:
    """The garbage collector may run inside the pool's own code, in the same thread: nothing may wait there."""

    class Shelves(OrderedDict[int, list[numpy.ndarray]]):
        def get(self, size: int, default: Any = None) -> Any:
            held.clear()
            return super().get(size, default)

    held = [pool.take(NUMEL, torch.float32)]
    pool._shelves = Shelves()
    other = pool.take(2 * NUMEL, torch.float32)
    assert not held
    assert pool.idle == 4 * NUMEL
    del other
    assert pool.idle == (4 + 8) * NUMEL


def test_take_does_not_wait(pool: Pool) -> None:
    first = pool.take(NUMEL, torch.float32)
    with pool._lock:
        second = pool.take(NUMEL, torch.float32)
        del first
        assert pool.idle == 0
    del second
    assert pool.idle == 8 * NUMEL


def test_garbage_collected_cycles(pool: Pool) -> None:
    cycle: list[object] = [pool.take(NUMEL, torch.float32)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert pool.idle == 4 * NUMEL


def test_threads_never_share_bytes(pool: Pool) -> None:
    wrong: list[int] = []

    def work(mark: int) -> None:
        for step in range(200):
            taken = [pool.take(NUMEL >> (step % 4), torch.float32) for _ in range(3)]
            for offset, tensor in enumerate(taken):
                tensor[:: NUMEL // 32] = 10 * mark + offset
            wrong.extend(
                mark for offset, tensor in enumerate(taken) if (tensor[:: NUMEL // 32] != 10 * mark + offset).any()
            )

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert not pool._returned
    assert pool.idle == sum(block.nbytes for blocks in pool._shelves.values() for block in blocks)
    assert 0 < pool.idle <= pool.largest_idle


def test_forked_child_has_a_pool_of_its_own() -> None:
    from bppsa.runtime import pool as module

    place = module.take(NUMEL, torch.float32).data_ptr()
    module._pool._lock.acquire()  # as if another thread were inside when we fork
    child = os.fork()
    if not child:
        signal.alarm(30)
        os._exit(module.take(NUMEL, torch.float32).data_ptr() != place)
    module._pool._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
