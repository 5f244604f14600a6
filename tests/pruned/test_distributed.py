"""Compiled models under PyTorch's data parallel wrappers, on one process and on two."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import bppsa
from bppsa.plan import sparse
from tests.pruned.forwards import Net
from tests.pruned.side_by_side import images, made
from tests.pruned.support import error, kernels

pytestmark = pytest.mark.slow

ROWS, TURNS = 8, 4


def wrapped(model: nn.Module, **options: Any) -> nn.Module:
    return DistributedDataParallel(model, **options)


def sharded(model: nn.Module) -> nn.Module:
    return fully_shard(model)  # type: ignore[return-value]


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": wrapped,
    "ddp, gradients in buckets": functools.partial(wrapped, gradient_as_bucket_view=True),
    "ddp, unused looked for": functools.partial(wrapped, find_unused_parameters=True),
    "ddp, static graph": functools.partial(wrapped, static_graph=True),
    "fsdp": sharded,
}


def full(p: Any) -> Tensor:
    return p.full_tensor() if hasattr(p, "full_tensor") else p


def trained(model: nn.Module, called: nn.Module, rank: int, ranks: int) -> list[Tensor]:
    """Its parameters after some steps, each on its own rows; a mean over rows."""
    optimizer = torch.optim.SGD(called.parameters(), 0.05, momentum=0.9)
    for turn in range(TURNS):
        optimizer.zero_grad()
        x = images(turn, ROWS).tensor_split(ranks)[rank]
        called(x).square().mean().backward()
        optimizer.step()
    return [full(p).detach().clone() for p in model.parameters()]


def run(rank: int, ranks: int, wrapper: str, kept: bool, file: str) -> None:
    """On each rank: the wrapped model beside PyTorch's, which sees all rows."""
    torch.set_num_threads(1)
    sparse.MARGIN = 0.0
    if kept:
        sparse.LEAST_WEIGHTS, sparse.MOST_KEPT = 0, 1.0
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    try:
        fast = bppsa.compile(made(Net))
        got = trained(fast, WRAPPERS[wrapper](fast), rank, ranks)
        plain = made(Net)
        expected = trained(plain, plain, 0, 1)
        for (name, start), a, b in zip(made(Net).named_parameters(), expected, got, strict=True):
            assert error(a - start, b - start) < 1e-9, name
        assert wrapper == "fsdp" or "sparse" in kernels(fast)
    finally:
        dist.destroy_process_group()


CASES = [("ddp", 1, False), ("fsdp", 1, False), *((wrapper, 2, True) for wrapper in WRAPPERS), ("ddp", 2, False)]


@pytest.mark.parametrize(("wrapper", "ranks", "kept"), CASES)
def test_ranks_train_as_one_process(wrapper: str, ranks: int, kept: bool, tmp_path: Path) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(run, (ranks, wrapper, kept, str(tmp_path / "store")), nprocs=ranks)
