"""In what the numbers of a schedule count."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Units:
    """Names of units, for tables and diagrams: `time` of costs and makespans, `memory` of activations and weights.

    By default a job that costs 1 is the unit of time, and what one micro-batch's activations of a stage take is that of
    memory.
    """

    time: str = "jobs"
    memory: str = "activations"

    def of_rows(self) -> str:
        """The legend of a table of schedules."""
        return (
            f"makespan in {self.time}; bubble: the share of the workers' time in which they are idle; memory is of "
            f"activations and weights\ntogether, in {self.memory} like both; receives in messages a step; each of the "
            f"worker that has most"
        )


JOBS = Units()
