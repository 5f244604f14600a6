"""An action of a worker's program: it runs a job, and prints as `2F0`."""

from __future__ import annotations

from typing import NamedTuple


class Action(NamedTuple):
    """Running a job: the same tuple (s, b, d)."""

    stage: int
    batch: int
    kind: str

    def __str__(self) -> str:
        """2F0, as torch's pipelining prints it; 2U1.0 where the kind ends in a number."""
        return f"{self.stage}{self.kind}{'.' if self.kind[-1].isdigit() else ''}{self.batch}"
