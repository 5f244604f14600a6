"""One step of a loop as a fused cell, and how its scan runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.lowering.lower import IN_KERNELS
from bppsa.decisions import Decision
from bppsa.errors import Unsupported, first_line
from bppsa.frontend.call_log import explaining, forward_of_model, note, strategy_of_model
from bppsa.frontend.cell.fused_cell import CellPlan, resolved
from bppsa.frontend.cell.plans import plan_of
from bppsa.frontend.ordinary import device_of, mixed
from bppsa.frontend.planning.forward import open_forward, solver_of, told
from bppsa.frontend.planning.predict import choose_scan
from bppsa.frontend.planning.sweeps import with_structure
from bppsa.fxpasses.cell.survey import told as all_told
from bppsa.fxpasses.recording.capture import Recording, record
from bppsa.fxpasses.recording.recorder import Recorder
from bppsa.fxpasses.reroll.body import Body
from bppsa.fxpasses.reroll.log.lines import place
from bppsa.fxpasses.reroll.log.ops import LoggedOp
from bppsa.fxpasses.reroll.rewrite import Unsurveyed
from bppsa.fxpasses.theirs import raise_if_ours, theirs
from bppsa.plan.forward import AUTO as OPEN
from bppsa.plan.forward import Forward
from bppsa.plan.strategy import AUTO, Strategy, strategy_of
from bppsa.plan.work import PYTORCH


@dataclass(eq=False)
class Fused:
    """One scan of a plan, as a function of its carry, what each step is given, and what is the same in all. decision:
    what is told of it; None where it is told with another scan of its loop."""

    plan: CellPlan
    strategy: Strategy
    forward: Forward
    chosen: Forward | str
    decision: Decision | None
    alone: bool
    steps: int
    kept_every: int | None
    __name__ = "scan"  # in the text of a graph

    def __call__(self, carry: Sequence[Tensor], given: Sequence[Tensor], same: Sequence[Tensor]) -> list[Tensor]:
        if self.alone:
            carry, given = [value[None] for value in carry], [value[:, None] for value in given]
        places: Any = self.plan.places
        carry, given, same = map(resolved, (carry, given, [*same, *places]))
        if (device := device_of((*carry, *given))).type == "cuda":
            same = beside(device, same)
            if reason := mixed((*carry, *given, *same)):
                raise Unsupported(reason)
        ahead = open_forward(self.forward, self.plan.memory)
        solver = solver_of(self.chosen if ahead is self.forward else ahead, self.plan.memory)
        finals, outputs = self.plan.run(carry, given, same, False, self.strategy, solver, self.kept_every)
        if self.decision is not None:
            note(told(self.decision, self.plan.memory, solver, rested=ahead is not self.forward))
        finals = [final.to(start.dtype) for final, start in zip(finals, carry, strict=True)]  # a kernel has one dtype
        if self.alone:
            finals, outputs = [value[0] for value in finals], [value[:, 0] for value in outputs]
        return [*finals, *outputs]


def fuse(body: Body, steps: int, device: torch.device, known: CellPlan | None = None) -> Fused:
    """One scan of a step; known: its cell, where one was made before.

    Raises `Unsupported` where the step cannot be one kernel of the device, or the loop is predicted to be faster.
    """
    alone = body.rows is None
    carries, given = [value_like(value) for value in body.carries], [value_like(value, 1) for value in body.given]
    if alone:
        carries, given = [value[None] for value in carries], [value[None] for value in given]
    plan = known
    if plan is None:
        recording = recorded(body, alone, (carries, given, [value_like(value) for value in body.same]))
        plan = planned(recording, len(carries), len(given))
    if device.type == "cuda" and plan.without_gpu is not None:
        raise Unsupported(plan.without_gpu)
    rows = body.rows or 1
    asked, ahead = strategy_of_model() or AUTO, forward_of_model() or OPEN
    training = torch.is_grad_enabled()
    choice = choose_scan(plan.recurrence, plan.dtype, asked, steps, rows, training, device.type, ahead, explaining())
    if choice.strategy == PYTORCH:
        raise Unsupported(choice.reason)
    numbers = {"T": steps, "B": rows, "H": plan.recurrence.moving}
    decision = Decision("", "loop", choice.strategy, choice.reason, numbers | choice.numbers, *choice.told)
    decision = with_structure(decision, plan.recurrence)
    strategy = strategy_of(choice.strategy)
    return Fused(plan, strategy, ahead, choice.forward, decision, alone, steps, choice.kept_every)


def planned(recording: Recording, carries: int, given: int) -> CellPlan:
    """Raises `Unsurveyed` where the step cannot be one kernel, which can tell all that keeps it from that."""
    places = tuple(tensor for tensor, _ in recording.captured)
    try:
        return plan_of(recording, carries, given, places, None)
    except Unsupported as unsupported:
        survey = functools.partial(all_told, unsupported.reason, recording, carries, given, IN_KERNELS)
        raise Unsurveyed(unsupported.reason, survey) from unsupported


def recorded(body: Body, alone: bool, args: tuple[Any, ...]) -> Recording:
    """Raises `Unsupported` where PyTorch refuses the step on stand-ins, which have their rows in front."""
    recorder, now = Recorder(), list[LoggedOp]()
    recorder.line = lambda: place(now[-1].lines) if now else ""
    step = functools.partial(body, before=now.append)
    try:
        return record(functools.partial(of_one_row, step) if alone else step, args, recorder=recorder)
    except Unsupported as unsupported:
        reason = unsupported.reason
        raise Unsupported(replace(reason, path=reason.path or recorder.line())) from unsupported
    except RuntimeError as error:
        raise_if_ours(error)
        what = f"does not run with its rows in front: {first_line(error)}"
        raise Unsupported(what, path=recorder.line()) from error


def of_one_row(step: Callable[..., Any], carry: list[Tensor], given: list[Tensor], same: list[Tensor]) -> Any:
    """The step with a dimension in front of its values, where kernels have rows. Raises `Unsupported` where
    torch.vmap cannot put one there."""
    try:
        with without_warnings_of_fallbacks():
            return theirs(torch.vmap(step, in_dims=(0, 0, None)), carry, given, same)
    except RuntimeError as error:
        raise_if_ours(error)
        raise Unsupported(f"its values have no rows, and torch.vmap gives none: {first_line(error)}") from error


@contextmanager
def without_warnings_of_fallbacks() -> Iterator[None]:
    """torch.vmap warns of ops that it runs row by row, as if the user had called it; here a step is only recorded."""
    of_functorch: Any = torch._C._functorch
    of_functorch._set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        of_functorch._set_vmap_fallback_warning_enabled(True)


def beside(device: torch.device, same: Sequence[Tensor]) -> list[Tensor]:
    """What is the same in all steps, on a GPU: PyTorch takes single numbers of the CPU beside tensors there."""
    return [tensor if tensor.dim() else tensor.to(device) for tensor in same]


def value_like(value: Any, skip: int = 0) -> Tensor:
    return torch.empty(value.shape[skip:], dtype=value.dtype)
