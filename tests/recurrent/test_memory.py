"""What a call keeps: nothing without gradients, nothing after the backward, and at no time more than PyTorch's."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from bppsa.runtime.recurrent import sweep
from tests.recurrent.support import KINDS, compiled, leaves, random, weighted

pytestmark = pytest.mark.slow

I, H, T, B = 5, 11, 1200, 16  # noqa: E741  large enough for the pool, and no program of one call
ROOT = Path(__file__).parents[2]


class Allocated:
    """The storages that sweeps allocated, none of them kept alive by this."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.refs: list[StorageWeakRef] = []

    def add(self, tensor: Tensor) -> None:
        ref = StorageWeakRef(tensor.untyped_storage())
        self.refs.append(ref)
        self.sizes[ref.cdata] = tensor.untyped_storage().nbytes()

    def alive(self) -> int:
        """Bytes"""
        return sum(self.sizes[cdata] for cdata in {ref.cdata for ref in self.refs if not ref.expired()})


@contextmanager
def allocations() -> Iterator[Allocated]:
    """The garbage collector is off: what only it would free is a leak for the length of a step."""
    allocated, original = Allocated(), sweep.allocate

    def allocate(*args: Any) -> Tensor:
        tensor = original(*args)
        allocated.add(tensor)
        return tensor

    gc.collect()
    gc.disable()
    try:
        with mock.patch.object(sweep, "allocate", allocate):
            yield allocated
    finally:
        gc.enable()


def nbytes(tensors: list[Tensor]) -> int:
    return sum(t.untyped_storage().nbytes() for t in tensors)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [{}, {"num_layers": 3}, {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_kept(kind: str, flags: dict[str, Any], context: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, x = KINDS[kind](I, H, **flags), random(T, B, I, dtype=torch.float32)
    with allocations() as allocated:
        with context():
            outputs = leaves(compiled(model)(x))
        assert allocated.sizes
        assert not any(out.requires_grad for out in outputs)
        assert allocated.alive() <= nbytes(outputs)
        outputs.clear()
        assert allocated.alive() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_that_need_no_gradient_keep_nothing(kind: str) -> None:
    model, x = KINDS[kind](I, H).requires_grad_(False), random(T, B, I, dtype=torch.float32, grad=False)
    with allocations() as allocated:
        outputs = leaves(compiled(model)(x))
        assert not any(out.requires_grad for out in outputs)
        assert allocated.alive() <= nbytes(outputs)


def train(model: nn.Module, x: Tensor) -> Tensor:
    loss = weighted(leaves(model(x)))
    loss.backward()
    return loss


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [{}, {"num_layers": 2, "bidirectional": True, "dropout": 0.5}], ids=str)
def test_the_backward_frees_all(kind: str, flags: dict[str, Any]) -> None:
    """Also while the loss, and so the graph's nodes, are held."""
    model, x = KINDS[kind](I, H, **flags), random(T, B, I, dtype=torch.float32)
    with allocations() as allocated:
        loss = train(compiled(model), x)
        assert allocated.alive() == 0
        assert loss.grad_fn is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_nobody_runs_backward_is_freed_with_its_outputs(kind: str) -> None:
    model, x = KINDS[kind](I, H, 2), random(T, B, I, dtype=torch.float32)
    with allocations() as allocated:
        outputs = leaves(compiled(model)(x))
        assert allocated.alive()
        outputs.clear()
        assert allocated.alive() == 0


def test_a_failed_backward_keeps_nothing() -> None:
    model, x = nn.GRU(I, H), random(T, B, I, dtype=torch.float32)
    with allocations() as allocated:
        loss = compiled(model)(x)[0].sum()
        with torch.no_grad():
            model.weight_hh_l0.add_(1)
        with pytest.raises(RuntimeError, match="inplace"):
            loss.backward()
        assert allocated.alive()
        del loss
        assert allocated.alive() == 0


PEAK = """
import re, sys
import torch
from torch import nn
import bppsa
kind, whose, steps, batch, size = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
torch.manual_seed(0)
model = getattr(nn, kind)(size, size)
run = bppsa.compile(model, strategy="sequential") if whose == "ours" else model

def step(steps):
    x = torch.randn(steps, batch, size, requires_grad=True)
    run(x)[0].sum().backward()

def peak():  # of this program; that of getrusage counts from the process that it was forked from
    return int(re.search("VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])

step(2)  # whatever is loaded, built and allocated once
before = peak()
for _ in range(5):
    step(steps)
print(peak() - before)
"""


def peak(*arguments: object) -> int:
    """KiB above what a process has that has run one small step, after five of the given size."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}  # frees memory again
    command = [sys.executable, "-c", PEAK, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=usual)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_peak_of_a_process(kind: str) -> None:
    size = (1000, 16, 64)
    assert peak(kind, "ours", *size) <= peak(kind, "pytorch", *size)
