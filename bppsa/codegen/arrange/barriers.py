"""Where threads that share the columns of a step must meet, so that none reads what another has still to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bppsa.codegen.arrange.hazards import Touch, read, written
from bppsa.codegen.language.ir import FOLDS, Group, Kernel, Kind

Cut = tuple[int, ...]  # how a group's columns are cut: groups of equal cuts give a column to the same thread


@dataclass(frozen=True)
class Use:
    """What one group does to one place in memory, and how its columns are dealt to threads."""

    touch: Touch
    writes: bool
    cut: Cut

    def conflicts(self, other: Use) -> bool:
        if not (self.writes or other.writes) or not self.touch.meets(other.touch):
            return False
        return self.cut != other.cut or self.touch.clashes(other.touch)


def splittable(kernel: Kernel) -> bool:
    """Whether threads may share the columns of a step: a sum over columns would need all of them, and so may what moves
    along several axes."""
    return all(store.reduce not in FOLDS and not group.shape for group in kernel.groups for store in group.stores)


def barriers(kernel: Kernel, cuts: Sequence[Cut]) -> list[bool]:
    """Before which groups all threads must have done what came before."""
    uses = [_uses(kernel, group, cut) for group, cut in zip(kernel.groups, cuts, strict=True)]
    meet = [False] * len(uses)
    since: list[Use] = []  # what may still be going on in other threads
    for _ in range(2):  # the second time round, what the step before did is known
        for i, now in enumerate(uses):
            if meet[i] or any(a.conflicts(b) for a in since for b in now):
                meet[i], since = True, []
            since = since + now
        since = [seen for use in since for seen in _in_next_step(kernel, use)]
    return meet


def _uses(kernel: Kernel, group: Group, cut: Cut) -> list[Use]:
    reads = [Use(touch, False, cut) for touch in read(kernel, group)]
    writes = [written(group, store) for store in group.stores]
    return reads + [Use(touch, True, cut) for touch in writes if touch is not None]


def _in_next_step(kernel: Kernel, use: Use) -> list[Use]:
    """The same columns as the next step sees them: streams have moved on, a state's `after` has become its `before`."""
    kind, touch = kernel.buffer(use.touch.buffer).kind, use.touch
    if kind is Kind.STATE:
        return [replace(use, touch=replace(touch, after=not touch.after))] if touch.after == kernel.along else []
    return [] if kind is Kind.STREAM else [use]
