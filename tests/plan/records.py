"""Counts and machines of the planner's tests."""

from __future__ import annotations

from bppsa.plan.cost import Machine, Rates
from bppsa.plan.work import Counts, Each, Products

ONE = Each(flops=100, bytes=10)


def counts(peer: str = "GRU", **changes: int) -> Counts:
    sizes = {"ops": 5, "weights": 400, "blocks": 1, "width": 3, "word": 4} | changes
    before, after = Products(1, Each(6, 2)), Products(3, Each(18, 6))
    return Counts(
        peer, inference=ONE, forward=Each(110, 12), backward=Each(220, 24), before=before, after=after, **sizes
    )


PHASES = ("inference", "forward", "backward")
NAMES = (
    *PHASES,
    "products",
    "reduce",
    "scan",
    "correct",
    *(f"{peer} {phase}" for peer in ("GRU", "loop") for phase in PHASES),
)


def machine(device: str = "cpu", slots: int | None = None, margin: float = 1.0, **special: Rates) -> Machine:
    """All rates alike but `special` ones, whose names have _ for a space."""
    rates = dict.fromkeys(NAMES, Rates(10, 1, 1, 1)) | {name.replace("_", " "): r for name, r in special.items()}
    return Machine("a machine", device, "made up", margin, rates, slots)
