"""A region while it grows: values, steps, and the parameters that they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.codegen.sparse_conv.native import LANES
from bppsa.codegen.sparse_conv.window import Window
from bppsa.errors import Unsupported
from bppsa.frontend.ordinary import is_plain
from bppsa.frontend.pruned.regions.entries import KeptEntries
from bppsa.frontend.pruned.regions.nodes import path_of, run_node, symbols_of
from bppsa.runtime.sparse_conv.conv import Conv
from bppsa.runtime.sparse_conv.norm import BatchNorm
from bppsa.runtime.sparse_conv.pooling import MaxPool
from bppsa.runtime.sparse_conv.programs.image import ImageShape
from bppsa.runtime.sparse_conv.programs.step import RegionStep
from bppsa.runtime.sparse_conv.region import Node, Region
from bppsa.runtime.sparse_conv.sums import Flatten, ImageSum


@dataclass(frozen=True)
class RegionValue:
    """A tensor [B, C] or [B, C, H, W] (`dims`) of the region, known by its number."""

    number: int
    shape: ImageShape
    dims: int


EntriesByLayer = dict[tuple[fx.Node, Window, torch.dtype], KeptEntries]


@dataclass(frozen=True)
class RegionLayer:
    """A convolution or linear layer of a region, as far as choice and report want to know it."""

    path: str
    kind: str
    step: Conv
    inputs: int  # channels or features
    groups: int
    samples: int
    entries: KeptEntries
    masks: tuple[fx.Node, ...]
    kept: int  # weights, when the plan was made
    first: bool  # reads an input of the region

    @property
    def window(self) -> Window:
        return self.step.window

    @property
    def outputs(self) -> int:
        return self.step.channels


@dataclass
class Draft:
    """known: what the nodes before the region gave. node: that which is being laid."""

    known: dict[fx.Node, Any]
    entries: EntriesByLayer
    brought: frozenset[Any] = frozenset()  # symbols of numbers that differ between calls
    nodes: list[Node] = field(default_factory=list)
    inputs: dict[int, fx.Node] = field(default_factory=dict)
    values: list[RegionValue] = field(default_factory=list)
    found: dict[fx.Node, Any] = field(default_factory=dict)  # a RegionValue, or what is no image as it is
    params: list[fx.Node] = field(default_factory=list)
    extras: list[Any] = field(default_factory=list)  # nodes, or numbers
    ahead: list[fx.Node] = field(default_factory=list)  # nodes that run before the region, as they read nothing of it
    counters: list[fx.Node] = field(default_factory=list)  # tensors that are raised by one before it
    changed: list[int] = field(default_factory=list)  # memory of these, and of statistics that its steps change
    rectified: set[int] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)  # values that a name more than one reads
    layers: list[RegionLayer] = field(default_factory=list)
    node: fx.Node | None = None
    dtype: torch.dtype | None = None  # of all its images, from the first that enters on

    def value_of(self, node: fx.Node) -> Any:
        """What the region has for a node inside or outside of it. Raises Unsupported for a number that differs between
        calls."""
        if node not in self.found:
            outer = self.known[node]
            if isinstance(outer, (bool, int, float, tuple, list)) and not holds_for_all_calls(node, self.brought):
                raise Unsupported("a number that each call brings")
            self.found[node] = self.enter(outer, node) if is_image(outer) else outer
        return self.found[node]

    def tensor_of(self, node: Any) -> Tensor | None:
        """A parameter or buffer from outside of the region. Raises Unsupported where it is none that a kernel reads."""
        if node is None:
            return None
        found = self.known.get(node)
        if found is None:
            raise Unsupported("its weight, bias or statistics are computed within the region")
        if not is_plain(found) or not found.is_cpu or found.dtype is not self.dtype:
            what = f"a parameter or buffer is {found.dtype} on {found.device}, or of a class of its own"
            raise Unsupported(what)
        return found

    def new(self, shape: ImageShape, dims: int) -> RegionValue:
        self.values.append(RegionValue(len(self.values), shape, dims))
        return self.values[-1]

    def enter(self, tensor: Tensor, node: fx.Node) -> RegionValue:
        """`tensor`: [B, C] or [B, C, H, W], computed outside. Raises Unsupported where others are of another dtype."""
        if self.dtype not in (None, tensor.dtype):
            raise Unsupported(f"{tensor.dtype} comes into a region of {self.dtype}")
        self.check_reads(tensor)
        self.dtype = tensor.dtype
        value = self.new(ImageShape(*tensor.shape), tensor.dim())
        self.inputs[value.number] = node
        return value

    def add(
        self,
        step: RegionStep,
        inputs: Sequence[RegionValue],
        params: Sequence[fx.Node | None] = (),
        extras: Sequence[Any] = (),
        dims: int | None = None,
    ) -> RegionValue:
        out = self.new(step.shape(*(v.shape for v in inputs)), dims or inputs[0].dims)
        places: list[int | None] = []
        for node in params:
            places.append(None if node is None else len(self.params))
            self.params += [] if node is None else [node]
        own = len(self.extras), len(self.extras) + len(extras)
        self.extras += extras
        self.nodes.append(Node(step, tuple(v.number for v in inputs), out.number, tuple(places), own))
        if isinstance(step, Flatten) and inputs[0].number in self.rectified:
            self.rectified.add(out.number)
        return out

    def layer(self, kind: str, window: Window, groups: int, x: RegionValue, operands: Sequence[Any]) -> RegionValue:
        """operands: nodes of the weight, its masks and its bias, or None."""
        weight, masks, bias = operands
        own, _ = self.tensor_of(weight), self.tensor_of(bias)
        assert self.node is not None
        assert self.dtype is not None
        assert own is not None
        path = path_of(self.node)
        entries = self.entries.get((self.node, window, self.dtype))
        if entries is None:
            entries = KeptEntries(path, own.shape, window, groups, self.dtype)
            self.entries[self.node, window, self.dtype] = entries
        count = entries.show([with_versions(self.known[mask], path) for mask in masks])
        first, step = x.number in self.inputs, Conv(window, own.shape[0], entries)
        sizes = x.shape.channels, groups, x.shape.samples
        self.layers.append(RegionLayer(path, kind, step, *sizes, entries, tuple(masks), count, first))
        return self.add(step, (x,), (weight, bias))

    def before(self, node: fx.Node) -> None:
        """Have PyTorch run it before the region: what reads nothing but tensors and numbers of the graph's own."""
        for leaf in node.all_input_nodes:
            self.check_reads(self.known[leaf])
        self.known[node] = run_node(node, self.known)
        self.ahead.append(node)

    def count(self, counter: fx.Node) -> None:
        """Have a tensor of the graph's own raised by one before the region."""
        self.changes(counter)
        self.counters.append(counter)

    def changes(self, *tensors: fx.Node) -> None:
        """The region does. Raises Unsupported where it reads the memory of one as an image: it may do so too early."""
        if not all(is_plain(self.known[node]) for node in tensors):
            raise Unsupported("it changes a tensor of a class of its own")
        own = [memory(self.known[node]) for node in tensors]
        if any(memory(self.known[image]) in own for image in self.inputs.values()):
            raise Unsupported("it changes what the region reads")
        self.changed += own

    def check_reads(self, value: Any) -> None:
        """Raises Unsupported for the memory of what the region has changed by then: it is read before the region."""
        if self.changed and isinstance(value, Tensor) and (not is_plain(value) or memory(value) in self.changed):
            raise Unsupported("it reads statistics that the region changes")

    def mark(self) -> tuple[int, ...]:
        return tuple(len(grows) for grows in self._growing())

    def back_to(self, mark: tuple[int, ...]) -> None:
        """Forget what has been added since."""
        for grows, size in zip(self._growing(), mark, strict=True):
            del grows[size:]

    def _growing(self) -> tuple[list[Any], ...]:
        return self.nodes, self.params, self.extras, self.layers, self.ahead, self.counters, self.changed

    def is_own(self, x: object) -> bool:
        """Made in this region, and read by nobody but the present node."""
        return isinstance(x, RegionValue) and self.reads_alone(x) and x.number not in self.inputs

    def reads_alone(self, x: RegionValue) -> bool:
        """The present node, whose first argument x is, is the only one that reads it."""
        return sum(map(reads_numbers, self.readers())) == 1 and x.number not in self.shared

    @property
    def source(self) -> Any:
        """The present node's first argument."""
        return self.node.args[0] if self.node and self.node.args else None

    def readers(self) -> list[fx.Node]:
        return list(self.source.users) if isinstance(self.source, fx.Node) else []

    def rectify(self, x: RegionValue, inplace: bool) -> RegionValue:
        """ReLU: within the step that made x if nobody else reads x, else a step of its own."""
        maker = self.maker(x)
        if self.is_own(x) and isinstance(maker, (Conv, BatchNorm, ImageSum)):
            maker.relu = True
            out = x
        elif inplace and not self.is_own(x):
            raise Unsupported("a change in place of what others read", mend="nn.ReLU(inplace=False)")
        else:
            out = self.add(ImageSum(relu=True), (x,))
        self.rectified.add(out.number)
        return out

    def max_pool(self, x: RegionValue, pool: MaxPool) -> RegionValue:
        """Pools within the convolution that made x, if nobody else reads x or asks for its size, else a step of its
        own."""
        maker, alone = self.maker(x), self.is_own(x) and len(self.readers()) == 1
        if not (alone and pool.quarters and isinstance(maker, Conv) and maker.pool is None):
            return self.add(pool, (x,))
        maker.pool_by(pool)
        out = self.values[x.number] = replace(x, shape=pool.shape(x.shape))
        return out

    def maker(self, x: RegionValue) -> RegionStep | None:
        return next((n.step for n in self.nodes if n.output == x.number), None)

    def region(self, outputs: Sequence[RegionValue]) -> Region:
        dims = {v.number: v.dims for v in self.values}
        return Region(
            tuple(self.nodes),
            tuple(self.inputs),
            tuple(dict.fromkeys(v.number for v in outputs)),
            dims,
            frozenset(self.rectified),
        )


def memory(tensor: Tensor) -> int:
    """The same number for a tensor and its views."""
    return tensor.untyped_storage().data_ptr()


def with_versions(mask: Tensor, path: str) -> Tensor:
    """A mask whose changes in place can be noticed. Raises Unsupported for another."""
    if mask.is_inference():
        what = f"the mask of {path}.weight is from torch.inference_mode(), where changes in place leave no trace"
        raise Unsupported(what, mend="prune outside of it")
    return mask


def is_image(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and is_plain(value)
        and value.is_cpu
        and value.dtype in LANES
        and value.dim() in (2, 4)
        and value.numel() > 0
        and not (value.is_inference() and torch.is_grad_enabled())  # autograd cannot save it
    )


def holds_for_all_calls(node: fx.Node, brought: frozenset[Any]) -> bool:
    """A number, or some of them, that follow from what a plan is made for: sizes, and numbers but those that are
    brought."""
    value = node.meta.get("example_value")
    known = all(isinstance(x, (int, torch.SymInt)) for x in (value if isinstance(value, (tuple, list)) else (value,)))
    return known and not symbols_of(node) & brought


def reads_numbers(node: fx.Node) -> bool:
    """Whether a node reads numbers, and not only the shape."""
    asks = (node.op, node.target) == ("call_method", "size") or (node.target is getattr and node.args[1:] == ("shape",))
    return not asks
