"""A model cut into stages, and what goes between them: what the partition pass hands to those who run a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import fx, nn

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

    node: fx.Node  # the call
    number: int  # of the layer in its module
    path: str  # of the module in the model


@dataclass(frozen=True)
class Axes:
    """Of a tensor: which axis is time, and which the batch's rows; None where it has none."""

    time: int | None = None
    rows: int | None = None


@dataclass(frozen=True)
class OverTime:
    """A recurrent model whose time axis can be cut into chunks: beside its recurrent layers each step is on its own.

    The graph's modules and Parameters are the model's own; calls of recurrent modules are its nodes. An output without
    a time axis is of the last step.
    """

    graph: fx.GraphModule
    layers: tuple[Layer, ...]  # in the order in which they run
    arguments: tuple[Axes, ...]  # of each leaf of the list of arguments
    outputs: tuple[Axes, ...]  # of each leaf of what the graph returns
    names: Mapping[str, str]  # of a Parameter or buffer of `graph` -> the model's first name for it
    draws: tuple[tuple[str, int], ...]  # nodes of `graph` that draw random numbers, and their places
    bind: Callable[..., list[Any]] = field(repr=False)  # the model's call (*args, **kwargs) -> its arguments
    assemble: Callable[[Any], Any] = field(repr=False)  # what the graph returns -> what the model returns

    def __len__(self) -> int:
        return len(self.layers)
