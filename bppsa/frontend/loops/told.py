"""What a report tells of the loops of a call."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from bppsa.decisions import Decision
from bppsa.frontend.planning.predict import ms_of_ops
from bppsa.fxpasses.reroll.find import Repetition

TOLD = 0.8  # of what a scan gains: below it the ops beside it are told of
GROWN = "rounding grows over its steps: its numbers are not PyTorch's in float32, and are in float64"


def tell_scans(found: Sequence[Repetition], run: fx.GraphModule, path: str, doubted: bool) -> tuple[Decision, ...]:
    """Gives the scans of a program their decisions, and returns these: one a loop."""
    scans: list[Any] = [one.scan.target for one in found if one.scan is not None]
    beside = ops_beside(run, scans) // len(scans)
    told = [
        told_of(one, scan.decision, named(path, one), beside, doubted) for one, scan in zip(found, scans, strict=True)
    ]
    decided = by_loop(found, told)
    for scan, decision in zip(scans, decided, strict=True):
        scan.decision = decision
    return tuple(filter(None, decided))


def by_loop(found: Sequence[Repetition], told: Sequence[Decision]) -> list[Decision | None]:
    """One decision a loop, with its first scan: what it does besides, as a loss that is summed, may be scans too."""
    members: dict[str, list[Decision]] = {}
    for i, (one, decision) in enumerate(zip(found, told, strict=True)):
        members.setdefault(one.line or str(i), []).append(decision)
    whole = {id(own[0]): together(own) for own in members.values()}
    return [whole.get(id(decision)) for decision in told]


def together(scans: Sequence[Decision]) -> Decision:
    first, *others = scans
    sizes = [", ".join(f"{name}={scan.numbers[name]}" for name in ("T", "B", "H")) for scan in others]
    also = (f"also run as scans: {'; '.join(sizes)}",) if sizes else ()
    return replace(first, details=(*first.details, *also))


def told_of(one: Repetition, decision: Decision, path: str, beside: int, doubted: bool) -> Decision:
    """beside: how many ops PyTorch runs beside this scan, such as draws of each step."""
    reasons, gain = [decision.reason], None
    ours, theirs = (decision.numbers.get(name) for name in ("predicted ms", "PyTorch's"))
    if isinstance(ours, float) and isinstance(theirs, float):
        ms = ms_of_ops(beside, torch.is_grad_enabled())
        gain = (theirs + ms) / (ours + ms)
        if gain < TOLD * theirs / ours:
            whole = (
                f"predicted {gain:.1f} times as fast as PyTorch's, with the {beside} ops beside it, which PyTorch runs"
            )
            reasons = [f"{whole}; the scan alone: {decision.reason}"]
    reasons += [GROWN] * doubted
    numbers = {**decision.numbers, "T": one.steps}
    return replace(decision, path=path, reason="; ".join(reasons), numbers=numbers, speedup=gain)


def ops_beside(run: fx.GraphModule, scans: Sequence[Any]) -> int:
    calls = run.graph.find_nodes(op="call_function", target=operator.getitem)
    return sum(node.op == "call_function" for node in run.graph.nodes) - len(calls) - len(scans)


def refusals(found: Sequence[Repetition], path: str) -> tuple[Decision, ...]:
    """One a loop: what repeats in it in another way, and is left too, is no other loop."""
    first: dict[str, Repetition] = {}
    for i, one in enumerate(found):
        if one.reason is not None:
            first.setdefault(one.line or str(i), one)
    return tuple(refused(one, path) for one in first.values())


def refused(one: Repetition, path: str) -> Decision:
    return Decision(named(path, one), "loop", "pytorch", str(one.reason), {"T": one.steps, "ops": one.period})


def named(path: str, one: Repetition) -> str:
    file, _, line = one.line.rpartition(":")
    if not line:
        return path or "a loop"
    where = f"{file.rpartition('/')[2]}:{line}"
    return f"{path}:{where}" if path else where
