"""Whether steps of time meet nowhere but in recurrent layers: the whole against two chunks of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from bppsa.common.graph import ancestors
from bppsa.common.stages import Axes
from bppsa.errors import ScheduleError, first_line
from bppsa.fxpasses.over_time.parts import NoAxis, are_close, axis_of, halves
from bppsa.fxpasses.over_time.trial import Trial, TrialRun, trial_of
from bppsa.fxpasses.partition.call.refusals import WHAT_FORWARDS_RAISE
from bppsa.fxpasses.theirs import raise_if_ours

MEND = "cut the model into stages instead, as schedule=gpipe() does"


class Mixed(ScheduleError):
    """Steps meet outside of recurrent layers, if these axes are time."""


@dataclass(frozen=True)
class FoundAxes:
    """times, rows: of each leaf of what the graph returns, its axis of time, None where it is of the last step, and of
    the batch's rows. `rows` is None where rows meet. output: what the graph returned, in float64."""

    times: list[int | None]
    rows: list[int | None] | None
    output: Any

    @property
    def axes(self) -> tuple[Axes, ...]:
        rows = self.rows or [None] * len(self.times)
        return tuple(Axes(time, row) for time, row in zip(self.times, rows, strict=True))


def tried(graph: fx.GraphModule, arguments: Sequence[Any], axes: Sequence[Axes]) -> FoundAxes:
    """axes: of each leaf of the arguments. Raises Mixed where steps meet, with the place."""
    with trial_of(graph, arguments) as trial:
        whole = trial.run(trial.given)
        for node, reading in whole.readings.items():
            if isinstance(reading.input, PackedSequence):
                raise packed(str(node.target))
        times = over_chunks(trial, whole, axes)
        return FoundAxes(times, over_rows(trial, whole, axes), whole.returned)


def packed(path: str) -> ScheduleError:
    return ScheduleError(
        f"{path} reads a packed sequence, whose rows end at different steps, so that chunks of time have no common "
        f"rows; pad it, and mask the loss"
    )


def over_chunks(trial: Trial, whole: TrialRun, axes: Sequence[Axes]) -> list[int | None]:
    """The axis of time of each leaf that is returned, None where it is of the last step."""
    early, late = halves(trial.given, [of.time for of in axes])
    try:
        first = trial.run(early)
        second = trial.run(late, before=first)
    except WHAT_FORWARDS_RAISE as error:
        raise_if_ours(error)
        raise Mixed(f"the time axis cannot be cut: chunks of it raise {first_line(error)!r}; {MEND}") from error
    runs = (whole, first, second)
    for node in whole.readings:
        check_reading(node, *runs)
    found = axes_of(runs)
    for axis, value in zip(found, tree_leaves(whole.returned), strict=True):
        if isinstance(axis, NoAxis):
            what = f"what it returns, {list(value.shape) if isinstance(value, Tensor) else value},"
            raise mixed(what, trial.graph.output_node(), runs)
    return known(found)


def axes_of(runs: Sequence[TrialRun]) -> list[int | NoAxis | None]:
    """Returns the axis of time of each leaf that is returned. runs: of the whole, its first and its second chunk."""
    return [axis_of(*values) for values in zip(*(tree_leaves(run.returned) for run in runs), strict=True)]


def check_reading(node: fx.Node, *runs: TrialRun) -> None:
    """Raises Mixed where a recurrent module does not read its steps. runs: of the whole, its first and its second
    chunk."""
    (module, input, states), first, second = (run.readings[node] for run in runs)
    time = 1 if module.batch_first and input.dim() == 3 else 0
    if axis_of(input, first.input, second.input) != time:
        raise mixed(f"what {node.target} reads", node, runs)
    for whole, *parts in zip(*map(tree_leaves, (states, first.states, second.states)), strict=True):
        if not all(are_close(whole, part) for part in parts):
            raise mixed(f"the initial state of {node.target}", node, runs)


def over_rows(trial: Trial, whole: TrialRun, axes: Sequence[Axes]) -> list[int | None] | None:
    """The axis of rows of each leaf that is returned; None where rows meet, or there are none."""
    if any(reading.input.dim() == 2 for reading in whole.readings.values()):
        return None
    try:
        runs = (whole, *map(trial.run, halves(trial.given, [of.rows for of in axes])))
    except WHAT_FORWARDS_RAISE as error:
        raise_if_ours(error)
        return None
    found = axes_of(runs)
    return None if any(isinstance(axis, NoAxis) for axis in found) else known(found)


def known(axes: Sequence[int | NoAxis | None]) -> list[int | None]:
    return [axis for axis in axes if not isinstance(axis, NoAxis)]


def mixed(what: str, at: fx.Node, runs: Sequence[TrialRun]) -> Mixed:
    """Names the first op before `at` whose value is not of chunks."""
    before = ancestors(at.all_input_nodes)
    for node in at.graph.nodes:
        if node in before and node.op in ("call_module", "call_function", "call_method"):
            values = zip(*(tree_leaves(run.env[node]) for run in runs), strict=False)
            if any(isinstance(axis_of(*of), NoAxis) for of in values):
                return Mixed(
                    f"the time axis cannot be cut: {what} is not its chunks side by side, from {place(node)} on; only "
                    f"recurrent layers may look at other steps; {MEND}"
                )
    return Mixed(f"the time axis cannot be cut: {what} has no axis of steps where it is expected; {MEND}")


def place(node: fx.Node) -> str:
    if node.op == "call_module":
        return f"module {node.target}"
    target = getattr(node.target, "overloadpacket", node.target)  # conv1d, where there is an aten.conv1d.default
    return f"{getattr(target, '__name__', target)} ({node.name})"
