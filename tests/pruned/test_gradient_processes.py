"""Compiled models, and gradients that hold kept entries alone, in forked workers, queues and shared memory."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from bppsa.plan import sparse
from bppsa.runtime.sparse_conv.gradient import KeptGradient
from tests.pruned.forwards import Net
from tests.pruned.side_by_side import both, images
from tests.pruned.support import error


@pytest.fixture(autouse=True)
def always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "LEAST_WEIGHTS", 0)
    monkeypatch.setattr(sparse, "MOST_KEPT", 1.0)


def step(model: nn.Module, turn: int) -> list[Tensor]:
    """Its output, and what its weights' gradients become."""
    model.zero_grad()
    y = model(images(turn, 4))
    y.square().sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters())]


def assert_equal(expected: list[Tensor], got: list[Tensor]) -> None:
    for a, b in zip(expected, got, strict=True):
        assert error(a.to_dense(), b.to_dense()) < 1e-11


class Outputs(Dataset):
    """Its samples are what a model makes, in whichever process asks; `trains` makes gradients as well."""

    def __init__(self, model: nn.Module, trains: bool) -> None:
        self.model, self.trains = model, trains

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> list[Tensor]:
        if self.trains:
            return [x.to_dense() for x in step(self.model, i)]
        with torch.no_grad():
            return [self.model(images(i, 4))]


class Stream(IterableDataset):
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __iter__(self) -> Iterator[Tensor]:
        for i in range(3):
            yield self.model(images(i, 4)).detach()


@pytest.mark.parametrize("called", [False, True], ids=["first call in the worker", "called before"])
@pytest.mark.parametrize("trains", [False, True], ids=["forward", "backward"])
def test_a_model_that_runs_in_the_workers_of_a_loader(called: bool, trains: bool) -> None:
    plain, fast = both(Net)
    if called:
        for turn in range(3):
            assert_equal(step(plain, turn), step(fast, turn))
    loaders = [
        DataLoader(Outputs(m, trains), batch_size=None, num_workers=n, multiprocessing_context="fork" if n else None)
        for m, n in ((plain, 0), (fast, 2))
    ]
    for expected, got in zip(*loaders, strict=True):
        assert_equal(expected, got)
    assert_equal(step(plain, 7), step(fast, 7))  # and here again
    stream = DataLoader(Stream(fast), batch_size=None, num_workers=1, multiprocessing_context="fork")
    for i, y in enumerate(stream):
        assert error(plain(images(i, 4)), y) < 1e-11


def send(queue: Any, model: nn.Module, done: Any) -> None:
    queue.put([p.grad for p in model.parameters()])
    step(model, 1)
    queue.put([p.grad.to_dense() for p in model.parameters()])
    done.wait(60)


def test_gradients_are_sent_from_a_forked_process() -> None:
    """That inherits some, and makes new ones."""
    plain, fast = both(Net)
    context = mp.get_context("fork")
    queue, done = context.Queue(), context.Event()
    step(plain, 0), step(fast, 0)
    assert isinstance(fast.lin.weight_orig.grad, KeptGradient)
    process = context.Process(target=send, args=(queue, fast, done))
    process.start()
    for turn in (0, 1):
        assert_equal(step(plain, turn)[1:], queue.get(timeout=60))
    done.set()
    process.join(60)
    assert process.exitcode == 0


def add_up(gradients: list[Tensor]) -> None:
    for g in gradients:
        g.add_(1)


def test_gradients_in_shared_memory() -> None:
    """As Hogwild has them: another process writes into them."""
    fast = both(Net)[1]
    step(fast, 0)
    before = [p.grad.to_dense().clone() for p in fast.parameters()]
    for p in fast.parameters():
        p.grad = p.grad.to_dense().share_memory_()
    process = mp.get_context("fork").Process(target=add_up, args=([p.grad for p in fast.parameters()],))
    process.start()
    process.join(60)
    for old, p in zip(before, fast.parameters(), strict=True):
        assert torch.equal(old + 1, p.grad)


def test_a_models_parameters_are_shared() -> None:
    """With gradients that hold kept entries alone; both go on."""
    plain, fast = both(Net)
    assert_equal(step(plain, 0), step(fast, 0))
    fast.share_memory()
    assert all(p.is_shared() for p in fast.parameters())
    for turn in range(2):
        assert_equal(step(plain, turn), step(fast, turn))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_gradient_is_an_ordinary_tensor(protocol: int) -> None:
    fast = both(Net)[1]
    step(fast, 0)
    for p in fast.parameters():
        copied = pickle.loads(pickle.dumps(p.grad, protocol))
        assert type(copied) is Tensor
        assert torch.equal(copied, p.grad.to_dense())
