"""What goes between ranks beside what jobs read: weights before jobs, and after them gradients and reports.

All ranks make the same tables, and so know the number of every message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bppsa.common.stages import Stages
from bppsa.distributed.steps.plans import StepPlan
from bppsa.schedule.programs.messages import Item, Message
from bppsa.schedule.programs.program import Action

Owners = Mapping[int, Sequence[int]]  # of each stage, the workers that own its weights, ascending


BUCKET = 4 << 20  # bytes of gradients from which on they go in a message of their own
SPLIT = 1 << 20  # bytes that are worth a root of their own


@dataclass(frozen=True)
class GradientReduction:
    """The gradients of some weights of these stages. contributions: from workers that compute some, in
    their order; None for the root itself, where they are summed. results: from the root to the other owners."""

    stages: tuple[int, ...]
    names: tuple[str, ...]
    root: int
    contributions: Mapping[int, Message | None]
    results: Mapping[int, Message]

    @property
    def received(self) -> list[Message]:
        """What the root receives."""
        return [message for message in self.contributions.values() if message is not None]


@dataclass(frozen=True)
class Exchange:
    """fetches: the weights that a job needs and its lane has not got. frees: jobs after which the lane gives its
    fetched weights up. reports: by source and target."""

    fetches: Mapping[Action, Message]
    frees: frozenset[Action]
    reductions: tuple[GradientReduction, ...]
    reports: Mapping[tuple[int, int], Message]


class MessageNumbers:
    """Messages behind those of the plan."""

    def __init__(self, first: int) -> None:
        self.next = first

    def message(self, kind: str, number: int, source: int, target: int) -> Message:
        self.next += 1
        return Message(Item(kind, number, 0), source, target, self.next - 1)


def make_exchange(plan: StepPlan, stages: Stages, owners: Owners) -> Exchange:
    numbers, workers = MessageNumbers(plan.handovers.messages), range(plan.timeline.W)
    fetches, frees = {}, set()
    for lane in foreign(plan, owners):
        for before, action, after in zip([None, *lane], lane, [*lane[1:], None], strict=False):
            if before is None or before.stage != action.stage:
                owner, worker = plan.timeline.owner[action], plan.timeline.worker[action]
                fetches[action] = numbers.message("P", action.stage, owner, worker)
            if after is None or after.stage != action.stage:
                frees.add(action)
    reductions: list[GradientReduction] = []
    for between, of, sizes in buckets(stages, plan.computing, owners):
        for names in even_parts(sizes, len(between.targets)):
            reductions.append(reduction(numbers, len(reductions), of, names, between))
    reports = {(i, j): numbers.message("L", 0, i, j) for i in workers for j in workers if i != j}
    return Exchange(fetches, frozenset(frees), tuple(reductions), reports)


def foreign(plan: StepPlan, owners: Owners) -> Iterator[list[Action]]:
    """Gives for each lane the jobs of stages that its worker does not own, in order."""
    for worker in range(plan.timeline.W):
        for lane in plan.lanes(worker):
            yield [action for action in lane if worker not in owners[action.stage]]


def together(stages: Stages) -> dict[tuple[int, ...], dict[str, int]]:
    """The names of Parameters, and their bytes, by the stages that read them: more than one where weights are tied."""
    readers: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for s, stage in enumerate(stages.stages):
        of_stage = {stage.names[own]: p for own, p in stage.module.named_parameters(remove_duplicate=False)}
        for name, parameter in of_stage.items():
            readers.setdefault(name, []).append(s)
            sizes[name] = parameter.nbytes
    found: dict[tuple[int, ...], dict[str, int]] = {}
    for name in sorted(readers):
        found.setdefault(tuple(readers[name]), {})[name] = sizes[name]
    return found


class Between(NamedTuple):
    """The workers that compute gradients of some weights, and those that own these."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]


Bucket = tuple[Between, tuple[int, ...], dict[str, int]]  # with the stages, and the bytes of its weights by name


def buckets(stages: Stages, computing: Owners, owners: Owners) -> list[Bucket]:
    """Groups gradients in the order in which backwards end: small ones wait for those of stages before."""
    found: list[Bucket] = []
    filling: dict[Between, int] = {}  # places in `found`
    for of, sizes in sorted(together(stages).items(), key=lambda item: -min(item[0])):
        between = Between(
            tuple(sorted({worker for s in of for worker in computing.get(s, ())})),
            tuple(sorted({worker for s in of for worker in owners[s]})),
        )
        at = filling.get(between)
        if at is None or sum(found[at][2].values()) >= BUCKET:
            filling[between] = len(found)
            found.append((between, of, sizes))
        else:
            _, others, theirs = found[at]
            found[at] = between, tuple(sorted({*others, *of})), {**theirs, **sizes}
    return found


def even_parts(sizes: Mapping[str, int], count: int) -> list[tuple[str, ...]]:
    """The names in as many parts of about the same bytes, or in fewer where there are few bytes."""
    count = max(1, min(count, sum(sizes.values()) // SPLIT))
    found: list[list[str]] = [[] for _ in range(count)]
    held = [0] * count
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        least = held.index(min(held))
        found[least].append(name)
        held[least] += sizes[name]
    return [tuple(names) for names in found if names]


def reduction(
    numbers: MessageNumbers, number: int, stages: tuple[int, ...], names: tuple[str, ...], between: Between
) -> GradientReduction:
    """Owners take turns in being the root, so that no one of many replicas does all sums."""
    root = between.targets[number % len(between.targets)]
    contributions = {w: None if w == root else numbers.message("R", number, w, root) for w in between.sources}
    results = {w: numbers.message("S", number, root, w) for w in between.targets if w != root}
    return GradientReduction(stages, names, root, contributions, results)
