"""What is timed: a recurrent module or a cell, its inputs, and one training step or one inference call of it.

Letters in shapes: T steps, B rows, H width; inputs are as wide as the state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.timing import Step

KINDS: dict[str, Callable[..., nn.RNNBase]] = {"GRU": nn.GRU, "LSTM": nn.LSTM, "RNN": nn.RNN}
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
WRONG = 1e-3  # relative: far above rounding, far below any mistake


@dataclass(frozen=True)
class Shape:
    kind: str
    T: int
    B: int
    H: int
    dtype: str = "float32"

    def __str__(self) -> str:
        double = "" if self.dtype == "float32" else f" {self.dtype}"
        return f"{self.kind} T={self.T} B={self.B} H={self.H}{double}"

    def row(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def flops(self) -> int:
        """Of a training step's matrix products: with x and with h, forward, and twice that backward."""
        return 3 * 2 * self.T * self.B * GATES[self.kind] * self.H * 2 * self.H


@dataclass(frozen=True)
class Problem:
    """Tensors of one shape; every way to compute is given these very tensors."""

    module: nn.Module  # called as nn.GRU is
    x: Tensor  # [T, B, H]
    states: tuple[Tensor, ...]  # [1, B, H] each
    cotangent: Tensor  # of y, [T, B, H]

    @staticmethod
    def of(shape: Shape, *, training: bool = True) -> Problem:
        torch.manual_seed(0)
        dtype = shape.torch_dtype
        module = KINDS[shape.kind](shape.H, shape.H, dtype=dtype)
        x = torch.randn(shape.T, shape.B, shape.H, dtype=dtype, requires_grad=training)
        states = tuple(
            torch.randn(1, shape.B, shape.H, dtype=dtype, requires_grad=training)
            for _ in range(1 + (shape.kind == "LSTM"))
        )
        return Problem(module, x, states, torch.randn(shape.T, shape.B, shape.H, dtype=dtype))

    @property
    def state(self) -> Any:
        return self.states if len(self.states) > 1 else self.states[0]

    @property
    def inputs(self) -> list[Tensor]:
        """Whatever gets a gradient."""
        return [self.x, *self.states, *self.module.parameters()]

    def output(self, module: Callable[..., Any]) -> Callable[[], Tensor]:
        return lambda: module(self.x, self.state)[0]

    def training(self, module: Callable[..., Any]) -> Step:
        return training_step(self.output(module), self.inputs, self.cotangent)

    def difference(self, module: Callable[..., Any]) -> float:
        """Of the module from PyTorch's, over the output and every gradient."""
        return difference(self.output(self.module), self.output(module), self.inputs, self.cotangent)


def training_step(
    run: Callable[[], Tensor | list[Tensor]], inputs: Sequence[Tensor], cotangent: Tensor | list[Tensor]
) -> Step:
    """Forward, then backward with the gradients of all inputs, until the graph is freed."""

    def step() -> tuple[float, float]:
        start = time.perf_counter()
        y = run()
        middle = time.perf_counter()
        torch.autograd.grad(y, inputs, cotangent)
        del y
        return middle - start, time.perf_counter() - middle

    return step


def inference(run: Callable[[], Any]) -> Step:
    def step() -> tuple[float]:
        with torch.no_grad():
            start = time.perf_counter()
            run()
            return (time.perf_counter() - start,)

    return step


def difference(
    peer: Callable[[], Tensor], ours: Callable[[], Tensor], inputs: Sequence[Tensor], cotangent: Tensor
) -> float:
    """The largest relative difference in norm; stops the benchmark where what it would time is wrong."""
    expected, found = peer(), ours()
    worst = max(
        ((a - b).norm() / a.norm()).item()
        for a, b in zip(
            [expected, *torch.autograd.grad(expected, inputs, cotangent)],
            [found, *torch.autograd.grad(found, inputs, cotangent)],
            strict=True,
        )
    )
    if not worst < WRONG:
        raise SystemExit(
            f"not timed, because wrong: a relative difference of {worst:.1e} on inputs {list(inputs[0].shape)}"
        )
    return float(f"{worst:.1e}")
