"""How long work takes on a machine: launches, steps that wait for each other, flops and bytes, each at a rate.

    call = phases, each a name and its Work      plan.work counts them
    Machine = for each name its Rates            plan.machines holds those that are known, plan.fit finds others
    Machine.us(phases) = the prediction

What decides is the quotient of two predictions, in which most of a machine's speed cancels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Work:
    """launches: of kernels, or calls of what has many; steps: that follow one another; bytes: of memory, read and
    written; width: pieces that run side by side (rows on a CPU, warps on a GPU), None where they fill what there is."""

    launches: float
    steps: float
    flops: float
    bytes: float
    width: float | None = 1

    def times(self, count: float) -> Work:
        """So often, one after the other."""
        return Work(self.launches * count, self.steps * count, self.flops * count, self.bytes * count, self.width)


Phase = tuple[str, Work]


@dataclass(frozen=True)
class Rates:
    """Microseconds: for a launch (on a GPU, what the caller's thread takes for it and for what stands around it), a
    step, a million flops, a thousand bytes."""

    launch: float
    step: float
    flops: float
    bytes: float


@dataclass(frozen=True)
class Machine:
    """The rates of a device, by the name of the phase: "forward", "backward", ... of ours, and with PyTorch's kind
    before it of PyTorch's: "GRU forward", or "loop forward" for a cell that Python steps through.

    device: "cpu" or "cuda". source: how the rates were found; "prediction" where nothing was measured. slots: pieces of
    work that run at once, where others wait for them; None where pieces share what there is, as rows share a CPU's
    registers. margin: how many times faster than PyTorch's a prediction has to be before it is believed;
    short: steps of a call whose prediction may be off by as much again (on a GPU, where its host is what takes time).
    """

    name: str
    device: str
    source: str
    margin: float
    rates: Mapping[str, Rates]
    slots: int | None = None
    short: int = 7

    def __str__(self) -> str:
        return f"{self.name}: {self.source}"

    def us(self, phases: Iterable[Phase]) -> float:
        """Microseconds of phases that follow one another."""
        return sum(sum(self.parts(name, work).values()) for name, work in phases)

    def parts(self, name: str, work: Work) -> dict[str, float]:
        """Microseconds of one phase by what takes them. Pieces beyond the slots wait for another round, and fewer leave
        some of the processors idle."""
        rates = self.rates[name]
        filled = 1.0 if self.slots is None or work.width is None else work.width / self.slots
        return {
            "launch": rates.launch * work.launches,
            "step": rates.step * work.steps * max(1.0, filled),
            "flops": rates.flops * work.flops / 1e6 / min(1.0, filled),
            "bytes": rates.bytes * work.bytes / 1e3,
        }

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of_json(read: Mapping[str, Any]) -> Machine:
        """The inverse of `as_json`. Raises KeyError or TypeError for what is no machine's record."""
        known = {field.name: read[field.name] for field in fields(Machine) if field.name in read}
        rates = {name: Rates(**{f.name: of[f.name] for f in fields(Rates)}) for name, of in read["rates"].items()}
        return Machine(**known | {"rates": rates})
