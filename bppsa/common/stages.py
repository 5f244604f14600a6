"""A model cut into stages, and what goes between them: what the partition pass hands to those who run a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import flop_registry

from bppsa.schedule.compare import in_columns
from bppsa.schedule.job_graph.spec import Build, Recipe, Schedule, bound_to

SELECTIVE = "selective"  # what a stage runs again before its backward, as "full" is
COST, MEASURED = "cost", "measured"  # what stages are made equal by
INPUT = -1  # the "stage" that an argument of the model comes from
WHOLE = "whole"  # in the meta of a stage's node: no place to split the backward, since it gives several tensors, or one
# that is read and then changed in place


@dataclass(frozen=True)
class StageValue:
    """A tensor, or any other object, that later stages read: an argument of the model or what a stage makes.

    A value that skips stages goes straight from its source to each of its readers.
    """

    name: str
    source: int  # a stage, or INPUT
    readers: tuple[int, ...]  # stages, ascending, all behind the source
    bytes: int = 0  # of the example's, 0 where it holds no tensor


Way = tuple[tuple[int, int], ...]  # numbers of quantities, and their powers


class Seconds(NamedTuple):
    """What a stage was measured to take, of the whole example."""

    forward: float
    backward: float


@dataclass(frozen=True)
class RecomputedPart:
    """Nodes of a stage that follow each other and run again before their backward: what they save for it is not held.

    products: whether results of matrix products are held all the same, and not computed again.
    """

    nodes: tuple[str, ...]
    cost: float = 0.0  # of the nodes, as `Stage.cost` counts
    of_products: float = 0.0  # what of it is matrix products'
    products: bool = False

    @property
    def again(self) -> float:
        """The cost of running it again."""
        return self.cost - self.of_products if self.products else self.cost


@dataclass(frozen=True)
class Stage:
    """module(*inputs) -> tuple of outputs; inputs and outputs are numbers of values.

    The outputs of the last stage are no values: they are the leaves of what the model returns.
    """

    module: nn.Module  # its Parameters and buffers are the model's own
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    names: Mapping[str, str]  # of a Parameter or buffer of `module` -> the model's first name; constants have none
    ops: int = 0
    flops: float = 0.0  # of the forward of the whole example batch
    cost: float = 0.0  # by which stages are made equal: flops, and the bytes that ops read and write as flops
    changes: tuple[str, ...] = ()  # buffers that the forward changes in place, by the model's names
    root: str = ""  # where in `module` the model is, whose paths go on from there
    draws: tuple[tuple[str, int], ...] = ()  # nodes of `module` that draw random numbers, and their places in the model
    seconds: Seconds | None = None  # where it was measured
    recomputed: tuple[RecomputedPart, ...] = ()  # at first the calls of torch.utils.checkpoint
    recomputable: tuple[RecomputedPart, ...] = ()  # all that can be: what is changed in place outside cannot
    counts: bool = False  # whether it makes numbers of the loss of rows, such as counts and means


class Situation(NamedTuple):
    """What the graph of a model was made for, besides sizes: how the model is when it is called."""

    training: tuple[bool, ...]  # of each module whose forward is in the graph
    dtypes: tuple[torch.dtype, ...]  # of the tensors among its arguments, and those that its Parameters have
    autocast: tuple[torch.dtype | None, ...]  # around the call, by device
    form: str  # of its arguments: which are tensors, None, or containers of these


@dataclass(frozen=True)
class LossMeans:
    """The weights of micro-batches' losses. count: of the arguments of the graph that gives the loss, quantities.

    ways: each a product of the number of rows (-1) and of these quantities, to powers; a micro-batch's loss counts by
    the product for it over that for the batch. If two ways give different factors, no weight is right: then each
    `term` counts by its own of `terms`, and where there are none the call is refused.
    """

    count: Callable[..., Sequence[torch.Tensor]] | None = None  # None: it is no sum or mean over rows
    sums: tuple[bool, ...] = ()  # of each quantity, whether micro-batches' add up to the batch's
    ways: tuple[Way, ...] = ()
    terms: tuple[Way, ...] = ()  # of each `term` in the graph, whose sum is the loss then
    place: str = ""  # where it ceases to be one, or terms of unlike ways are put together
    why: str = ""  # no weights would do, where it is not that


@dataclass(frozen=True)
class Stages:
    """values[:arguments] are the model's arguments in the order in which `bind` gives them."""

    stages: tuple[Stage, ...]
    values: tuple[StageValue, ...]
    arguments: int
    bind: Callable[..., list[Any]] = field(repr=False)  # the model's call (*args, **kwargs) -> its arguments
    assemble: Callable[[Any], Any] = field(repr=False)  # outputs of the last stage -> what the model returns
    by_rows: tuple[bool, ...] = field(default=(), kw_only=True)  # of each leaf of the arguments, whether it has rows
    shapes: tuple[tuple[int, ...] | None, ...] = field(default=(), kw_only=True)  # of these leaves, in the example
    situation: Situation | None = field(default=None, kw_only=True)  # None: they serve all
    means: LossMeans | None = field(default=None, kw_only=True)  # of the loss that the model returns; None: not known
    # of the leaves of a whole batch's arguments: raises where Python decides otherwise for it than for a micro-batch
    check_rows: Callable[[Sequence[Any]], None] = field(default=lambda leaves: None, kw_only=True, repr=False)
    # of the leaves of the arguments of a call, stand-ins for what the last stage returns for a few rows of it
    few: Callable[[Sequence[Any]], Sequence[Any]] | None = field(default=None, kw_only=True, repr=False)
    # as `bind`, but without its checks: the call may be one that other stages, of `again`, are for
    taken: Callable[..., list[Any]] | None = field(default=None, kw_only=True, repr=False)
    # of the model as it is now, and arguments as `taken` gives them: stages with the same weights
    again: Callable[[nn.Module, Sequence[Any]], Stages] | None = field(default=None, kw_only=True, repr=False)
    # (path of a module, name) of attributes that each call of the model sets for itself: stages leave nothing there
    transient: tuple[tuple[str, str], ...] = field(default=(), kw_only=True, repr=False)
    # which attribute of the model has changed since it was cut, "" where none has
    changed: Callable[[], str] = field(default=lambda: "", kw_only=True, repr=False)

    def __len__(self) -> int:
        return len(self.stages)

    def __str__(self) -> str:
        return self.table()

    def table(
        self, schedule: Schedule | Recipe | Build | None = None, microbatches: int = 8, workers: int | None = None
    ) -> str:
        """A line for each stage: ops, parameters, flops, its share of the cost, bytes handed on; with a schedule, who
        owns the stage's weights and who runs it for the first micro-batch and for any.

        Raises ScheduleError where there is no such schedule.
        """
        columns = [self.columns(stage) for stage in self.stages]
        if schedule is not None:
            bound = bound_to(schedule, len(self), microbatches, workers)
            columns = [own | places(bound, s, microbatches) for s, own in enumerate(columns)]
        rows = [["stage", *columns[0]], *([str(s), *own.values()] for s, own in enumerate(columns))]
        return "\n".join(in_columns(rows))

    def columns(self, stage: Stage) -> dict[str, str]:
        total = sum(stage.cost for stage in self.stages)
        return {
            "ops": str(stage.ops),
            "params": scaled(sum(parameter.numel() for parameter in stage.module.parameters())),
            "flops": scaled(stage.flops),
            "cost": f"{100 * stage.cost / total if total else 0:.3g}%",
            "out bytes": scaled(sum(self.values[i].bytes for i in stage.outputs)),
        }


def draws(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an ATen op draws random numbers: who cuts a model and who runs it have to agree."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    arguments = op._schema.arguments
    given = {a.name: a.default_value for a in arguments}  # what equals its default may be left out of a call
    given |= {a.name: value for a, value in zip(arguments, args, strict=False)} | dict(kwargs)
    return given.get("dropout_p") != 0 and given.get("train") is not False


# Products of activations by each other, as of attention, whose results are large and soon computed.
CHEAP_PRODUCTS = frozenset((torch.ops.aten.bmm, torch.ops.aten.baddbmm))
PRODUCTS = frozenset((*flop_registry, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu)) - CHEAP_PRODUCTS


def is_product(op: Any) -> bool:
    """Whether an ATen op's result is held where matrix products are: who counts costs and who runs have to agree."""
    return op._overloadpacket in PRODUCTS and not op._schema.is_mutable


def places(schedule: Schedule, s: int, B: int) -> dict[str, str]:
    """Where one stage is: what w says for the first micro-batch, and all workers that run it."""
    jobs = schedule.jobs or [(s, b, d) for d in schedule.directions for b in range(B)]
    found = [schedule.w(*job) for job in jobs if job[0] == s]
    workers = sorted({worker for _, worker in found})
    return {"owner": str(found[0][0]), "worker": str(found[0][1]), "workers": " ".join(map(str, workers))}


def scaled(number: float) -> str:
    """Writes a number in three digits, with k, M, G, ... for powers of a thousand."""
    for suffix in ("", "k", "M", "G"):
        if abs(number) < 999.5:
            return f"{number:.3g}{suffix}"
        number /= 1000
    return f"{number:.3g}T"


class Layer(NamedTuple):
    """A layer of a recurrent module, at one of its calls."""

    node: str  # the call, by its name in the graph
    number: int  # of the layer in its module
    path: str  # of the module
    op: int  # where it draws dropout masks: its number among the ops of the whole model


class Axes(NamedTuple):
    """Which axis of a tensor is time, and which the batch's rows; None where it has none."""

    time: int | None = None
    rows: int | None = None


@dataclass(frozen=True)
class OverTime(Stages):
    """A recurrent model whose time axis is cut into chunks: beside its recurrent layers each step is on its own.

    Stage l * chunks + k is layer l on chunk k, as `schedule.blelloch` numbers them. All stages have one module, the
    whole model's graph, in which calls of recurrent modules are nodes. An output without a time axis is of the last
    step.
    """

    chunks: int
    layers: tuple[Layer, ...]  # in the order in which they run
    arguments_axes: tuple[Axes, ...]  # of each leaf of the list of arguments
    outputs_axes: tuple[Axes, ...]  # of each leaf of what the module returns
    end_cost: float  # of a chunk, behind the last layer
    example: tuple[Any, ...] = field(repr=False)  # what the module returns for a short call
