"""In what the numbers of a schedule count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any

from bppsa.errors import ScheduleError

BYTES: Mapping[str, int] = {"B": 1, "bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True)
class Units:
    """Names of units, for tables and diagrams: `time` of costs and makespans, `memory` of activations and weights.

    By default a job that costs 1 is the unit of time, and what one micro-batch's activations of a stage take is that of
    memory.
    """

    time: str = "jobs"
    memory: str = "activations"

    def of_gigabytes(self, memory_gb: float | Fraction) -> int | Fraction:
        """Return 10^9 bytes times `memory_gb` in these units. Raises ScheduleError where they count no bytes."""
        if not isinstance(memory_gb, Real) or isinstance(memory_gb, bool) or not memory_gb > 0:
            raise ScheduleError(f"memory_gb={memory_gb!r} is no number of gigabytes above 0")
        if self.memory not in BYTES:
            raise ScheduleError(
                f"memory_gb= counts bytes, and the sizes of stages count in {self.memory}; give activation_sizes and "
                f"weight_sizes in MB with units=Units(memory='MB') (in a terminal: --activation-mb), or memory= in "
                f"{self.memory}"
            )
        exact = Fraction(memory_gb) * 10**9 / BYTES[self.memory]
        return int(exact) if exact.denominator == 1 else exact

    def of_rows(self) -> str:
        """The legend of a table of schedules."""
        return (
            f"makespan in {self.time}; bubble: the share of the workers' time in which they are idle; memory is of "
            f"activations and weights\ntogether, in {self.memory} like both; receives in messages a step; each of the "
            f"worker that has most"
        )


JOBS = Units()


def shown(value: Any) -> str:
    """The value in four digits where it is a float, exactly otherwise."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
