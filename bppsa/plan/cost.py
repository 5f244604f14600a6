"""How long one training step of a recurrence takes, predicted: floating-point work, per-step and per-call overhead.

A `Machine` is a handful of rates. The defaults were read off `benchmarks/recurrent.py` on the machine named there; what
counts is the quotient of two predictions, in which most of a machine's speed cancels.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Rates of one thread, and overheads."""

    sweep_gflops: float = 60.0  # products inside a generated sweep
    matmul_gflops: float = 70.0  # large products outside of it
    lanes_ns: float = 0.35  # pointwise work on one gate of one row's unit, forward and backward
    step_us: float = 0.25  # per step of a generated sweep, both ways
    call_us: float = 150.0  # per call of a generated sweep, both ways
    op_us: float = 6.0  # per op that PyTorch dispatches, forward and backward
    fused_gflops: float = 62.0  # of PyTorch's own fused recurrence (oneDNN)
    fused_step_us: float = 4.0  # per step of it, both ways
    thread_gain: float = 0.9  # of every thread after the first


@dataclass(frozen=True)
class Size:
    """Of one layer and direction. gates: columns of the recurrent product by H; inputs: columns of x."""

    steps: int
    rows: int
    hidden: int
    inputs: int
    gates: int

    @property
    def recurrent_flops(self) -> float:
        """Of h @ W_hh over all steps, and as much again for the cotangents."""
        return 2 * 2.0 * self.steps * self.rows * self.gates * self.hidden * self.hidden

    @property
    def outer_flops(self) -> float:
        """x @ W_ih, dx, and the two weight gradients."""
        return 2.0 * self.steps * self.rows * self.gates * self.hidden * (3 * self.inputs + self.hidden)


def sequential_ms(size: Size, machine: Machine, threads: int) -> float:
    """By generated sweeps; threads share the rows."""
    spread = 1 + machine.thread_gain * (min(threads, size.rows) - 1)
    matmul = size.outer_flops / (machine.matmul_gflops * (1 + machine.thread_gain * (threads - 1)))
    products = size.recurrent_flops / (machine.sweep_gflops * spread)
    points = size.steps * size.rows * size.hidden * size.gates * machine.lanes_ns / spread
    return (products + matmul + points) / 1e6 + (size.steps * machine.step_us + machine.call_us) / 1e3


def pytorch_ms(size: Size, machine: Machine, threads: int, ops: int) -> float:
    """By PyTorch: `ops` dispatched in every step, or its fused recurrence where that is 0."""
    flops = size.recurrent_flops + size.outer_flops
    spread = 1 + machine.thread_gain * (threads - 1)
    rate, step_us = (
        (machine.matmul_gflops, ops * machine.op_us) if ops else (machine.fused_gflops, machine.fused_step_us)
    )
    return flops / (rate * spread) / 1e6 + (size.steps * step_us + machine.call_us) / 1e3
