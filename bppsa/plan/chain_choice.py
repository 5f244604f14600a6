"""Whether a feed-forward segment's backward is worth a scan, and why.

A product of J^Ts does many times the work of applying them to one vector, so a scan can only gain where operations that
wait for each other are what takes the time: where there are more workers than work. Issuing an operation costs the same
whether anybody waits for it, and a scan issues more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bppsa.plan.chain_cost import JacobianSize, formed
from bppsa.plan.levels import complexity
from bppsa.plan.strategy import Division, Strategy

MARGIN = 1.1
SCAN = Strategy("blelloch")  # what auto weighs against back-propagation
OPS = 4  # that a stage's J^T takes to form: its values, and the factors of its ops


@dataclass(frozen=True)
class OperationRates:
    """Microseconds: to issue an operation, whoever waits for it; for an operation to pass on its result to one that
    waits. flops: multiplications and additions a microsecond, of all workers together."""

    issue: float
    step: float
    flops: float


# The rates of eager PyTorch, which issues one operation after the other from Python, on two cores of an AMD EPYC; the
# GPU's are estimates.
MACHINES = {"cpu": OperationRates(issue=5, step=0, flops=5e4), "cuda": OperationRates(issue=6, step=4, flops=1e7)}


def may_gain(device: str) -> bool:
    """Whether there is any chain for which a scan is predicted to gain: forming J^Ts alone issues more operations than
    back-propagation does, which only waiting for results can outweigh."""
    machine = MACHINES.get(device)
    return machine is not None and machine.step > OPS * machine.issue


def linear_us(stages: Sequence[JacobianSize], rows: int, machine: OperationRates) -> float:
    """The time of back-propagation through these stages: each waits for the one after it."""
    return len(stages) * (machine.issue + machine.step) + sum(e.mv for e in stages) * rows / machine.flops


def scan_us(division: Division, stages: Sequence[JacobianSize], rows: int, machine: OperationRates) -> float:
    """The time of forming J^Ts, and of the steps of section 3.6 with the work of every level."""
    made = formed(division, stages, 1)
    issued = sum(entry.count for entry in made) + (OPS - 1) * (made[0].count if made else 0) + len(stages)
    steps = complexity(division.scan).steps + division.length - 1
    work = sum(entry.flops for entry in made) + sum(e.mv for e in stages) * rows
    return issued * machine.issue + steps * machine.step + work / machine.flops
