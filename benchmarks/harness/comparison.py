"""PyTorch and ours on one problem, as a row of a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from harness.timing import Step, interleave, milliseconds, ratio

Row = dict[str, Any]
FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True)
class Options:
    threads: int
    repeats: int
    quick: bool  # the smallest shapes, to see that all of it runs


def compare(peer: Step, ours: Step, repeats: int) -> Row:
    samples = interleave({"peer": peer, "ours": ours}, repeats)
    a, b = samples["peer"], samples["ours"]
    row = {"peer_ms": milliseconds(a), "ours_ms": milliseconds(b), "ratio": asdict(ratio(a, b))}
    if len(a[0]) > 1:
        row |= {"forward": asdict(ratio(a, b, FORWARD)), "backward": asdict(ratio(a, b, BACKWARD))}
    return row


def strategy(fast: Any) -> str:
    """What ran in the last call."""
    return next((decision.strategy for decision in fast.report.decisions), "pytorch")
