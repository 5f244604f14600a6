"""Around a compiled model: Python threads, forked processes, DataLoader workers, DistributedDataParallel."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from bppsa.codegen.cpu.native import NativeKernel
from bppsa.frontend.rnn.recurrent import sweep_of
from tests.recurrent.support import KINDS, compiled, leaves, random, results, same, weighted

I, H, T, B = 5, 11, 40, 16  # noqa: E741  large enough for more than one thread


@pytest.mark.parametrize("kind", KINDS)
def test_threads(kind: str) -> None:
    """Two threads in one model, each with its own input, forward and backward side by side."""
    torch.manual_seed(0)
    model = KINDS[kind](I, H, 2)
    ours, weights = compiled(model), [*model.parameters()]
    inputs = [random(T + i, B, I, dtype=torch.float32) for i in range(6)]

    def step(x: Tensor) -> list[Tensor | None]:
        return results(ours, [x], [x, *weights])

    expected = [step(x) for x in inputs]
    start = threading.Barrier(2)

    def work(mine: Sequence[Tensor]) -> list[list[Tensor | None]]:
        start.wait()
        return [step(x) for _ in range(5) for x in mine]

    with ThreadPoolExecutor(2) as threads:
        halves = [*threads.map(work, (inputs[:3], inputs[3:]))]
    for half, right in zip(halves, (expected[:3], expected[3:]), strict=True):
        for got, wanted in zip(half, right * 5, strict=True):
            same(got, wanted, 0)


def test_first_calls_of_a_model_in_two_threads() -> None:
    """Kernels are looked up, built and kept by whoever comes first."""
    for kind in KINDS.values():
        model = kind(I, 6).double()
        ours, x, start = compiled(model), random(T, B, I), threading.Barrier(4)

        def work(_: int, run: Any = ours, x: Tensor = x, start: threading.Barrier = start) -> Tensor:
            start.wait()
            return run(x)[0]

        with ThreadPoolExecutor(4) as threads:
            found = [*threads.map(work, range(4))]
        for y in found:
            same([y], [model(x)[0]])


def test_a_program_of_kernels_that_two_threads_have_built() -> None:
    """The sweep keeps the last ones built; numbers of those that a program calls stay with the program."""
    model, x = nn.GRU(I, 13), random(6, 2, I, dtype=torch.float32)
    ours = compiled(model)
    leaves(ours(x))[0].sum().backward()
    runners = sweep_of(ours, 0, x).runners
    numbers = [weakref.ref(runner.entry[1]) for runner in cast(dict[str, NativeKernel], runners).values()]
    assert numbers
    runners.clear()
    assert all(array() is not None for array in numbers)


def test_two_backward_passes_through_one_graph_in_two_threads() -> None:
    model, x = nn.GRU(I, H, 2).double(), random(T, B, I)
    loss = weighted(leaves(compiled(model)(x)))
    wanted = [x, *model.parameters()]
    expected = torch.autograd.grad(loss, wanted, retain_graph=True)
    with ThreadPoolExecutor(2) as threads:
        found = [*threads.map(lambda _: torch.autograd.grad(loss, wanted, retain_graph=True), range(8))]
    for got in found:
        same(got, expected, 0)


def in_child(work: Callable[[], Any]) -> None:
    """Run `work` in a forked child; raises what it raised, and kills a child that hangs."""
    receive, send = multiprocessing.get_context("fork").Pipe(duplex=False)

    def run() -> None:
        try:
            send.send(work())
        except BaseException as error:  # noqa: BLE001  told to the parent, which raises it
            send.send(error)

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    try:
        assert receive.poll(60), "the child hangs"
        outcome = receive.recv()
    finally:
        child.kill()
        child.join()
    if isinstance(outcome, BaseException):
        raise outcome


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_fork_after_use(kind: str) -> None:
    """The child has none of its parent's threads. It computes what the parent does, also kernels new to it."""
    torch.manual_seed(0)
    model, x = KINDS[kind](I, H), random(T, B, I, dtype=torch.float32)
    ours = compiled(model)
    expected = [t.detach() for t in results(ours, [x], [x])]
    other, y = compiled(KINDS[kind](3, H, bias=False).double()), random(T, B, 3)

    def work() -> None:
        torch.set_num_threads(1)  # PyTorch's own OpenMP threads are gone too
        with torch.no_grad():
            same(leaves(ours(x)), expected[:-1], 1e-5)
            other(y)

    in_child(work)
    same([t.detach() for t in results(ours, [x], [x])], expected, 0)


class Encoded(Dataset):
    """Samples that a compiled model makes: in the workers, forked after it was used."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.data = torch.randn(6, 1200, I)

    def __len__(self) -> int:
        return len(self.data)

    @torch.no_grad()
    def __getitem__(self, index: int) -> Tensor:
        return self.model(self.data[index])[0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers(method: str) -> None:
    """Results go to the parent through shared memory."""
    torch.manual_seed(0)
    model = nn.GRU(I, 16)
    dataset = Encoded(compiled(model))
    expected = torch.stack([dataset[i] for i in range(len(dataset))])
    loader = DataLoader(dataset, 3, num_workers=2, multiprocessing_context=method, timeout=90)
    same([torch.cat([*loader])], [expected], 1e-5)
    same([expected.transpose(0, 1)], [model(dataset.data.transpose(0, 1))[0]], 1e-5)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.lstm, self.head = nn.GRU(I, H, 2), nn.LSTM(H, H), nn.Linear(H, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.gru(x)[0])[0])


def train(rank: int, folder: str) -> None:
    """Three steps of each model under DDP; rank 0 writes the weights that came out."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    for name in ("plain", "compiled"):
        torch.manual_seed(0)
        model = Net().double()
        run = DistributedDataParallel(compiled(model) if name == "compiled" else model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        torch.manual_seed(rank + 1)
        for _ in range(3):
            optimizer.zero_grad()
            run(torch.randn(T, 4, I, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
        if rank == 0:
            torch.save([p.detach() for p in model.parameters()], f"{folder}/{name}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")
def test_distributed_data_parallel(tmp_path: Path) -> None:
    multiprocessing.spawn(train, (str(tmp_path),), nprocs=2)
    plain, ours = (torch.load(tmp_path / f"{name}.pt") for name in ("plain", "compiled"))
    torch.manual_seed(0)
    assert not any(torch.equal(a, b) for a, b in zip(plain, Net().double().parameters(), strict=True))
    same(ours, plain)
