"""A model cut into stages, and what goes between them: what the partition pass hands to those who run a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

INPUT = -1  # the "stage" that an argument of the model comes from


@dataclass(frozen=True)
class Value:
    """A tensor, or any other object, that later stages read: an argument of the model or what a stage makes.

    A value that skips stages goes straight from its source to each of its readers.
    """

    name: str
    source: int  # a stage, or INPUT
    readers: tuple[int, ...]  # stages, ascending, all behind the source
    bytes: int = 0  # of the example's, 0 where it holds no tensor


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
    seconds: float | None = None  # of the forward, where it was measured
    draws: tuple[tuple[str, int], ...] = ()  # nodes of `module` that draw random numbers, and their places in the model


@dataclass(frozen=True)
class Stages:
    """values[:arguments] are the model's arguments in the order in which `bind` gives them."""

    stages: tuple[Stage, ...]
    values: tuple[Value, ...]
    arguments: int
    bind: Callable[..., list[Any]] = field(repr=False)  # the model's call (*args, **kwargs) -> its arguments
    assemble: Callable[[tuple[Any, ...]], Any] = field(
        repr=False
    )  # outputs of the last stage -> what the model returns

    def __len__(self) -> int:
        return len(self.stages)


class Layer(NamedTuple):
    """A layer of a recurrent module, at one of its calls."""

    node: str  # the call, by its name in the graph
    number: int  # of the layer in its module
    path: str  # of the module
    op: int  # where it draws dropout masks: its number among the ops of the whole model


class Axes(NamedTuple):
    """Of a tensor: which axis is time, and which the batch's rows; None where it has none."""

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
    example: tuple[Any, ...] = field(repr=False)  # what the module returns for a short call
