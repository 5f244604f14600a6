"""What goes between ranks beside what jobs read: weights before jobs, and after them gradients and reports.

All ranks make the same tables, and so know the number of every message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bppsa._workers.plans import Plan
from bppsa.schedule.messages import Item, Message
from bppsa.schedule.program import Action
from bppsa.stages import Stages

Owners = Mapping[int, Sequence[int]]  # of each stage, the workers that own its weights, ascending


@dataclass(frozen=True)
class Reduction:
    """The gradients of the weights that are read by the same stages. contributions: from workers that compute some, in
    their order; None for the root itself, where they are summed. results: from the root to the other owners."""

    stages: tuple[int, ...]
    names: tuple[str, ...]
    root: int
    contributions: Mapping[int, Message | None]
    results: Mapping[int, Message]


@dataclass(frozen=True)
class Exchange:
    """fetches: the weights that a job needs and its lane has not got. frees: jobs after which the lane gives its
    fetched weights up. reports: by source and target."""

    fetches: Mapping[Action, Message]
    frees: frozenset[Action]
    reductions: tuple[Reduction, ...]
    reports: Mapping[tuple[int, int], Message]


class Numbers:
    """Messages behind those of the plan."""

    def __init__(self, first: int) -> None:
        self.next = first

    def message(self, kind: str, number: int, source: int, target: int) -> Message:
        self.next += 1
        return Message(Item(kind, number, 0), source, target, self.next - 1)


def make_exchange(plan: Plan, stages: Stages, owners: Owners) -> Exchange:
    numbers, workers = Numbers(plan.messages), range(len(plan.steps))
    fetches, frees = {}, set()
    for lane in foreign(plan, owners):
        for before, action, after in zip([None, *lane], lane, [*lane[1:], None], strict=False):
            if before is None or before.stage != action.stage:
                owner, worker = plan.timeline.owner[action], plan.timeline.worker[action]
                fetches[action] = numbers.message("P", action.stage, owner, worker)
            if after is None or after.stage != action.stage:
                frees.add(action)
    computing = plan.computing
    reductions = tuple(
        reduction(numbers, number, of, tuple(names), computing, owners)
        for number, (of, names) in enumerate(sorted(together(stages).items()))
    )
    reports = {(i, j): numbers.message("L", 0, i, j) for i in workers for j in workers if i != j}
    return Exchange(fetches, frozenset(frees), reductions, reports)


def foreign(plan: Plan, owners: Owners) -> Iterator[list[Action]]:
    """Of each lane, the jobs of stages that its worker does not own, in order."""
    for worker, lanes in enumerate(plan.steps):
        for lane in lanes:
            yield [step.action for step in lane if worker not in owners[step.action.stage]]


def together(stages: Stages) -> dict[tuple[int, ...], list[str]]:
    """The names of Parameters by the stages that read them: more than one where weights are tied."""
    readers: dict[str, list[int]] = {}
    for s, stage in enumerate(stages.stages):
        for name in {stage.names[own] for own, _ in stage.module.named_parameters(remove_duplicate=False)}:
            readers.setdefault(name, []).append(s)
    found: dict[tuple[int, ...], list[str]] = {}
    for name in sorted(readers):
        found.setdefault(tuple(readers[name]), []).append(name)
    return found


def reduction(
    numbers: Numbers, number: int, stages: tuple[int, ...], names: tuple[str, ...], computing: Owners, owners: Owners
) -> Reduction:
    """Owners take turns in being the root, so that no one of many replicas does all sums."""
    sources = sorted({worker for s in stages for worker in computing.get(s, ())})
    targets = sorted({worker for s in stages for worker in owners[s]})
    root = targets[number % len(targets)]
    contributions = {w: None if w == root else numbers.message("R", number, w, root) for w in sources}
    results = {w: numbers.message("S", number, root, w) for w in targets if w != root}
    return Reduction(stages, names, root, contributions, results)
