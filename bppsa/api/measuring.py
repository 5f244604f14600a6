"""`bppsa.measure`: the rates of the device at hand, from a few calls by PyTorch and by ours."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bppsa import cells
from bppsa.common.chain import Recurrence
from bppsa.errors import MachineError, Reason
from bppsa.frontend.cell import scanning
from bppsa.frontend.cell.plans import find
from bppsa.frontend.planning import rates
from bppsa.frontend.planning.predict import choose_scan, counts_of
from bppsa.frontend.planning.sweeps import structure_of
from bppsa.frontend.rnn.classes import rewrite
from bppsa.frontend.rnn.recurrent import decide
from bppsa.frontend.rnn.spec import Spec
from bppsa.plan import work
from bppsa.plan.choose import multiply_inline
from bppsa.plan.cost import Machine, Phase
from bppsa.plan.fit import Measured, fitted
from bppsa.plan.forward import LIBRARY, NEWTON, Forward
from bppsa.plan.forward import SEQUENTIAL as STEP_BY_STEP
from bppsa.plan.machines import SHIPPED
from bppsa.plan.strategy import Strategy
from bppsa.plan.work import LOOP, PYTORCH, Counts, Size
from bppsa.runtime.recurrent import reference

Method = Strategy | str  # a strategy, or PYTORCH
Leaves = Sequence[Tensor]

SEQUENTIAL, CHUNKED, BLELLOCH = Strategy("sequential"), Strategy("chunked"), Strategy("blelloch")
MODULES: dict[str, Callable[..., nn.RNNBase]] = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
DIAGONAL = "MinGRU"
CELLS: dict[str, Callable[..., cells.Cell]] = {DIAGONAL: cells.MinGRU, "LayerNormLSTM": cells.LayerNormLSTM}

# T, B, H by device: each rate has calls that it decides.
SHAPES = {
    "cpu": ((2, 2, 16), (10, 1, 256), (100, 1, 32), (100, 16, 20), (40, 32, 64), (12, 32, 256), (300, 16, 32)),
    "cuda": ((10, 16, 32), (1000, 16, 32), (10000, 16, 32), (3000, 4, 64), (300, 256, 64)),
}
SCANNED = {"cpu": ((20, 2, 8), (40, 8, 16)), "cuda": ((30, 16, 32), (1000, 16, 32), (10000, 16, 32), (3000, 4, 64))}
LOOPED = ((2, 4, 16), (30, 16, 32))
REPEATS, LEAST_S, WARM_UP = 5, 1e-3, 2
MARGIN = 1.02


def measure(device: str = "cpu") -> Machine:
    """Measure a device, "cpu" or "cuda", and predict with what was found from now on, also in later processes.

    It takes some seconds, and longer the first time, while kernels are built. Nothing else should run meanwhile. The
    record is kept beside the kernels, for this processor, number of threads and version of torch; the environment
    variable BPPSA_MACHINE names another one, a JSON file.

    Raises:
        MachineError: the device is not there (a ValueError).
    """
    if device not in SHIPPED or (device == "cuda" and not torch.cuda.is_available()):
        raise MachineError(f"no device {device!r} to measure: there is cpu and, where torch sees one, cuda")
    machine = fitted(SHIPPED[device], list(calls(device)), rates.identity(device), "measured", MARGIN)
    rates.keep(machine)
    for decided in (decide, choose_scan):
        decided.cache_clear()
    return machine


def calls(device: str) -> Iterator[Measured]:
    for kind in MODULES:
        for shape in SHAPES[device]:
            subject = of_module(kind, *shape, device)
            for method in (PYTORCH, SEQUENTIAL):
                yield from subject.training(method)
                yield from subject.inference(method)
        for shape in SCANNED[device]:
            subject = of_module(kind, *shape, device)
            for method in (CHUNKED, BLELLOCH):
                yield subject.training(method)[1]  # the forward is that of one sweep
            if device == "cuda":
                yield subject.training(CHUNKED, LIBRARY)[0]
    for kind in CELLS:
        for shape in LOOPED:
            subject = of_cell(kind, *shape, device)
            yield from subject.training(PYTORCH)
            yield from subject.inference(PYTORCH)
    for shape in SCANNED[device] if device == "cuda" else ():
        yield from of_cell(DIAGONAL, *shape, device).training(CHUNKED, NEWTON)


@dataclass(frozen=True)
class Counted:
    """What a call comes to in each way."""

    counts: Counts
    size: Size

    def passes(self, method: Method, ahead: Forward = STEP_BY_STEP) -> list[list[Phase]]:
        return [
            work.forward(method, self.counts, self.size, True, ahead),
            work.backward(method, self.counts, self.size),
        ]

    def inference(self, method: Method) -> list[Phase]:
        return work.forward(method, self.counts, self.size, False)


def counted(kind: str, T: int, B: int, H: int, device: str) -> Counted:
    """What one of MODULES or CELLS comes to, with an input as wide as its state."""
    if kind in MODULES:
        (counts,) = Spec.of(MODULES[kind](H, H)).counts(torch.float32, B, device)
        return Counted(counts, Size(T, B))
    cell = CELLS[kind](H, H)
    recurrence = recurrence_of(cell, cell.initial(B), torch.randn(T, B, H))
    how = torch.float32, multiply_inline(B, device), device, LOOP, structure_of(recurrence)
    return Counted(counts_of(recurrence, *how), Size(T, B))


@dataclass(frozen=True)
class Subject:
    """What can be computed in several ways. run: gives y, [T, B, H]; inputs: whatever gets a gradient."""

    run: Callable[[Method, Forward], Callable[[], Tensor]]
    inputs: Leaves
    comes_to: Counted

    def training(self, method: Method, ahead: Forward = STEP_BY_STEP) -> list[Measured]:
        """The forward and the backward, each a call of its own."""
        return timed(self.run(method, ahead), self.inputs, self.comes_to.passes(method, ahead))

    def inference(self, method: Method) -> list[Measured]:
        with torch.no_grad():
            return timed(self.run(method, STEP_BY_STEP), (), [self.comes_to.inference(method)])


def of_module(kind: str, T: int, B: int, H: int, device: str) -> Subject:
    """nn.RNN, nn.GRU or nn.LSTM."""
    module = MODULES[kind](H, H).to(device)
    x = torch.randn(T, B, H, device=device, requires_grad=True)

    def run(method: Method, ahead: Forward) -> Callable[[], Tensor]:
        chosen = rewrite(module, method, ahead)[0] if isinstance(method, Strategy) else module
        return lambda: chosen(x)[0]

    return Subject(run, [x, *module.parameters()], counted(kind, T, B, H, device))


def of_cell(kind: str, T: int, B: int, H: int, device: str) -> Subject:
    """One of bppsa.cells, which PyTorch runs in a loop."""
    cell = CELLS[kind](H, H).to(device)
    x, carry = torch.randn(T, B, H, device=device, requires_grad=True), cell.initial(B)

    def run(method: Method, ahead: Forward) -> Callable[[], Tensor]:
        if isinstance(method, Strategy):
            return lambda: scanning.scan(cell, carry, x, strategy=method, forward=ahead)[1]
        return lambda: reference.loop(cell, carry, x)[1]

    return Subject(run, [x, *cell.parameters()], counted(kind, T, B, H, device))


def recurrence_of(cell: cells.Cell, carry: Any, x: Tensor) -> Recurrence:
    found = find(cell, *pytree.tree_flatten(carry), *pytree.tree_flatten(x))
    assert not isinstance(found, Reason), found
    return found[0].recurrence


def timed(run: Callable[[], Tensor], inputs: Leaves, passes: Sequence[Sequence[Phase]]) -> list[Measured]:
    """After a warm-up the least of some samples, since whatever else runs only adds; a short call's are means."""
    count = max(1, round(LEAST_S / min(sum(once(run, inputs)) for _ in range(WARM_UP))))
    samples = []
    for _ in range(REPEATS):
        some = [once(run, inputs) for _ in range(count)]
        samples.append([statistics.fmean(seconds) for seconds in zip(*some, strict=True)])
    least = map(min, zip(*samples, strict=True))
    return [Measured(phases, 1e6 * seconds) for phases, seconds in zip(passes, least, strict=True)]


def once(run: Callable[[], Tensor], inputs: Leaves) -> list[float]:
    """Seconds of the forward, and with `inputs` of the backward."""
    start = now()
    y = run()
    forward = now() - start
    if not inputs:
        return [forward]
    cotangent = torch.ones_like(y)
    start = now()
    torch.autograd.grad(y, inputs, cotangent)
    return [forward, now() - start]


def now() -> float:
    """When a GPU has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
