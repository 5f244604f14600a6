"""A region while it grows: values, steps, and the parameters that they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx, nn

from bppsa._pruned.masks import LAYERS, Weight, kept, marks, parameter_of, weight_of
from bppsa._pruned.masks import Layer as Weighted
from bppsa.codegen.blocked.window import Window
from bppsa.errors import Reason, Unsupported
from bppsa.runtime.blocked.conv import Conv
from bppsa.runtime.blocked.entries import Entries
from bppsa.runtime.blocked.image import Shape
from bppsa.runtime.blocked.norm import BatchNorm
from bppsa.runtime.blocked.pooling import MaxPool
from bppsa.runtime.blocked.region import Node, Region
from bppsa.runtime.blocked.step import Step
from bppsa.runtime.blocked.sums import Flatten, Sum


@dataclass(frozen=True)
class Value:
    """A tensor [B, C] or [B, C, H, W] (`dims`) of the region, known by its number."""

    number: int
    shape: Shape
    dims: int


@dataclass(frozen=True)
class Parameter:
    """Where a step's parameter is: `name` of the module. shape: that which the step is made for."""

    module: nn.Module
    name: str
    shape: torch.Size

    def now(self) -> Tensor:
        """Raises Unsupported where the step cannot take it."""
        found = parameter_now(self.module, self.name)
        if found is None or found.shape != self.shape:
            what = "gone" if found is None else f"{list(found.shape)}, not {list(self.shape)}"
            raise Unsupported(Reason(f"its {self.name} is {what}"))
        return found

    def is_own(self, tensor: Tensor) -> bool:
        """The module's, and not computed in each call (`parameter_of`)."""
        return is_weight(self.module, self.name) or self.module._parameters.get(self.name) is tensor


def is_weight(module: nn.Module, name: str) -> bool:
    return name == "weight" and isinstance(module, LAYERS)


def parameter_now(module: nn.Module, name: str) -> Tensor | None:
    if is_weight(module, name):
        return weight_of(module).parameter  # type: ignore[arg-type]
    return parameter_of(module, name)


class KeptEntries:
    """The entries of one layer for one geometry and dtype, made anew when its mask has become another one."""

    def __init__(self, layer: Weighted, path: str, window: Window, groups: int, dtype: torch.dtype) -> None:
        self.layer, self.path, self.window, self.groups, self.dtype = layer, path, window, groups, dtype
        self._made: tuple[Weight, list[int], Entries] | None = None

    def __call__(self) -> Entries:
        """Those of the masks that `renew` has seen last."""
        return (self._made or self.renew())[-1]

    def count(self) -> int:
        """Of the masks as they are now; nothing is made for it, as it may turn out that nobody reads the entries."""
        return int(kept(weight_of(self.layer), self.path).count_nonzero())

    def renew(self) -> tuple[Weight, list[int], Entries]:
        weight = weight_of(self.layer)
        marked = marks(weight.masks)
        if self._made is None or self._made[1] != marked or not weight.has_masks_of(self._made[0]):
            bits = kept(weight, self.path)
            bits = bits if bits.dim() == 4 else bits[..., None, None]
            self._made = weight, marked, Entries(bits, self.window, self.groups, self.dtype)
        return self._made


KeptByLayer = dict[tuple[nn.Module, Window, torch.dtype], KeptEntries]


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer of a region, as far as choice and report want to know it."""

    path: str
    kind: str
    step: Conv
    inputs: int  # channels or features
    groups: int
    samples: int
    entries: KeptEntries
    kept: int  # weights
    first: bool  # reads an input of the region

    @property
    def window(self) -> Window:
        return self.step.window

    @property
    def outputs(self) -> int:
        return self.step.channels


@dataclass
class Draft:
    """`root`: the traced module, which all paths are relative to. node: that which is being laid."""

    root: nn.Module
    memo: KeptByLayer
    nodes: list[Node] = field(default_factory=list)
    inputs: dict[int, fx.Node] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    params: list[Parameter] = field(default_factory=list)
    rectified: set[int] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)  # values that a name more than one reads
    layers: list[Layer] = field(default_factory=list)
    node: fx.Node | None = None
    dtype: torch.dtype | None = None  # of all its images, from the first that enters on

    def new(self, shape: Shape, dims: int) -> Value:
        self.values.append(Value(len(self.values), shape, dims))
        return self.values[-1]

    def enter(self, tensor: Tensor, node: fx.Node) -> Value:
        """`tensor`: [B, C] or [B, C, H, W], computed outside. Raises Unsupported where others are of another dtype."""
        if self.dtype not in (None, tensor.dtype):
            raise Unsupported(Reason(f"{tensor.dtype} comes into a region of {self.dtype}"))
        self.dtype = tensor.dtype
        value = self.new(Shape(*tensor.shape), tensor.dim())
        self.inputs[value.number] = node
        return value

    def add(
        self, step: Step, inputs: Sequence[Value], params: Sequence[tuple[str, str]] = (), dims: int | None = None
    ) -> Value:
        out = self.new(step.shape(*(v.shape for v in inputs)), dims or inputs[0].dims)
        places: list[int | None] = []
        for path, name in params:
            module = self.root.get_submodule(path)
            there = parameter_now(module, name)
            places.append(None if there is None else len(self.params))
            self.params += [] if there is None else [Parameter(module, name, there.shape)]
        self.nodes.append(Node(step, tuple(v.number for v in inputs), out.number, tuple(places)))
        if isinstance(step, Flatten) and inputs[0].number in self.rectified:
            self.rectified.add(out.number)
        return out

    def layer(self, kind: str, path: str, window: Window, channels: int, groups: int, x: Value) -> Value:
        module: Weighted = self.root.get_submodule(path)  # type: ignore[assignment]
        assert self.dtype is not None
        key = module, window, self.dtype
        entries = self.memo.setdefault(key, KeptEntries(module, path, window, groups, self.dtype))
        count = entries.count()  # what is wrong with its mask is said here
        first, step = x.number in self.inputs, Conv(window, channels, entries, relu=False)
        self.layers.append(Layer(path, kind, step, x.shape.channels, groups, x.shape.samples, entries, count, first))
        return self.add(step, (x,), ((path, "weight"), (path, "bias")))

    def mark(self) -> tuple[int, int, int]:
        return len(self.nodes), len(self.params), len(self.layers)

    def back_to(self, mark: tuple[int, int, int]) -> None:
        """Forget what has been added since."""
        nodes, params, layers = mark
        del self.nodes[nodes:], self.params[params:], self.layers[layers:]

    def is_own(self, x: object) -> bool:
        """Made in this region, and read by nobody but the present node."""
        return isinstance(x, Value) and self.reads_alone(x) and x.number not in self.inputs

    def reads_alone(self, x: Value) -> bool:
        """The present node, whose first argument x is, is the only one that reads it."""
        return sum(map(reads_numbers, self.readers())) == 1 and x.number not in self.shared

    def readers(self) -> list[fx.Node]:
        """Of the present node's first argument."""
        source = self.node.args[0] if self.node and self.node.args else None
        return list(source.users) if isinstance(source, fx.Node) else []

    def rectify(self, x: Value, inplace: bool) -> Value:
        """ReLU: within the step that made x if nobody else reads x, else a step of its own."""
        maker = self.maker(x)
        if self.is_own(x) and isinstance(maker, (Conv, BatchNorm, Sum)):
            maker.relu = True
            out = x
        elif inplace and not self.is_own(x):
            raise Unsupported(Reason("a change in place of what others read", mend="nn.ReLU(inplace=False)"))
        else:
            out = self.add(Sum(relu=True), (x,))
        self.rectified.add(out.number)
        return out

    def max_pool(self, x: Value, pool: MaxPool) -> Value:
        """Within the convolution that made x, if nobody else reads x or asks for its size, else a step of its own."""
        maker, alone = self.maker(x), self.is_own(x) and len(self.readers()) == 1
        if not (alone and pool.quarters and isinstance(maker, Conv) and maker.pool is None):
            return self.add(pool, (x,))
        maker.pool_by(pool)
        out = self.values[x.number] = replace(x, shape=pool.shape(x.shape))
        return out

    def maker(self, x: Value) -> Step | None:
        return next((n.step for n in self.nodes if n.output == x.number), None)

    def region(self, outputs: Sequence[Value]) -> Region:
        dims = {v.number: v.dims for v in self.values}
        return Region(
            tuple(self.nodes),
            tuple(self.inputs),
            tuple(dict.fromkeys(v.number for v in outputs)),
            dims,
            frozenset(self.rectified),
        )


def reads_numbers(node: fx.Node) -> bool:
    """And not only the shape."""
    asks = (node.op, node.target) == ("call_method", "size") or (node.target is getattr and node.args[1:] == ("shape",))
    return not asks
