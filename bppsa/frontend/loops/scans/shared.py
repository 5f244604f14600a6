"""What the plans of one loop share, however many lengths it is called with: a cell and its kernels are made once.

The step of a new length is compared with the steps that are known, op by op and number by number. The program around
its scan is compared too. A number in it may differ if it goes with the number of steps. If all is alike, and the
program of another length was tried on other numbers than its call's, then this one is not tried on them again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from bppsa.common.recent import RecentMap
from bppsa.frontend.cell.fused_cell import CellPlan
from bppsa.frontend.loops.scans.fuse import Fused, fuse
from bppsa.fxpasses.environment.key import exact
from bppsa.fxpasses.reroll.body import Body, OperandSource
from bppsa.fxpasses.reroll.lengths import StepNumbers, goes_with
from bppsa.fxpasses.reroll.log.ops import LoggedValue, is_number

MOST = 16  # cells, and kinds of programs
WITNESSES = 4  # programs of one kind
NUMBER = "number"  # in the place of one


@dataclass(eq=False)
class SharedSteps:
    """What is shared within one object and one process; a copy begins anew. cells: by what their steps are; programs:
    by their ops, the numbers and steps of those that are trusted."""

    cells: RecentMap[CellPlan] = field(default_factory=lambda: RecentMap(MOST))
    programs: RecentMap[list[ProgramNumbers]] = field(default_factory=lambda: RecentMap(MOST))
    numbers: StepNumbers = field(default_factory=StepNumbers)

    def fuse(self, body: Body, steps: int, device: torch.device) -> Fused:
        """Raises `Unsupported` as `fuse` does."""
        key = body_key(body)
        known = self.cells.get(key)
        fused = fuse(body, steps, device, known)
        if not fused.plan.places:
            self.cells.keep(key, fused.plan)
        return fused

    def knows(self, shape: Hashable, numbers: ProgramNumbers) -> bool:
        """Whether programs of other lengths are trusted that do the same."""
        known = self.programs.get(shape) or []
        return bool(known) and all(numbers.is_like(other) for other in known)

    def trust(self, shape: Hashable, numbers: ProgramNumbers) -> None:
        self.programs.keep(shape, [*(self.programs.get(shape) or []), numbers][-WITNESSES:])


def body_key(body: Body) -> Hashable:
    """All that a cell is made of: two bodies of one key are one step."""
    ops = tuple(
        (number, op.target, op.spec, op.grad, op.single, tuple(map(like, op.outs)), tuple(map(leaf_key, leaves)))
        for number, op, leaves in body.ops
    )
    given = tuple((value.shape[1:], value.dtype) for value in body.given)
    carries, same = (tuple(map(like, values)) for values in (body.carries, body.same))
    modes = torch.is_grad_enabled(), torch.get_default_dtype()
    return ops, carries, given, same, body.nexts, body.outputs, body.rows, modes


def like(value: LoggedValue) -> Hashable:
    return tuple(value.shape), value.dtype


def leaf_key(leaf: Any) -> Hashable:
    return leaf if isinstance(leaf, OperandSource) else exact(leaf)


@dataclass(frozen=True)
class ProgramNumbers:
    """values: the numbers among a program's operands, lists of them being one, in order. steps: of its scans. cells:
    of these, which their key names by address."""

    values: tuple[Any, ...]
    steps: tuple[int, ...]
    cells: tuple[CellPlan, ...]

    def is_like(self, other: ProgramNumbers) -> bool:
        lengths = list(zip(self.steps, other.steps, strict=True))
        return all(
            exact(one) == exact(two) or any(goes_with(one, two, *each) for each in lengths)
            for one, two in zip(self.values, other.values, strict=True)
        )


def shape_of(run: fx.GraphModule, inputs: Hashable) -> tuple[Hashable, ProgramNumbers]:
    """A program without its numbers, and these. inputs: what tells where it finds what it takes."""
    places: dict[fx.Node, int] = {}
    numbers: list[Any] = []
    scans: list[Fused] = []

    def told(value: Any) -> Hashable:
        if isinstance(value, fx.Node):
            return "node", places[value]
        if isinstance(value, (list, tuple)) and value and all(map(is_number, value)):
            numbers.append(tuple(value))
            return NUMBER, "list"
        if isinstance(value, (list, tuple)):
            return tuple(map(told, value))
        if is_number(value):
            numbers.append(value)
            return NUMBER, type(value)
        return exact(value)

    def entries() -> Iterator[Hashable]:
        for i, node in enumerate(run.graph.nodes):
            places[node] = i
            target: Any = node.target
            if isinstance(target, Fused):
                scans.append(target)
                target = id(target.plan), target.strategy, str(target.chosen), target.alone
            elif node.op == "placeholder":
                target = ""
            yield node.op, target, told(node.args), tuple((name, told(value)) for name, value in node.kwargs.items())

    shape = tuple(entries()), inputs, torch.is_grad_enabled()
    steps = tuple(scan.steps for scan in scans)
    return shape, ProgramNumbers(tuple(numbers), steps, tuple(scan.plan for scan in scans))


def are_of(scans: Sequence[Fused], before: Sequence[CellPlan]) -> bool:
    """Whether all of the scans run cells that were there before."""
    return all(any(scan.plan is plan for plan in before) for scan in scans)
