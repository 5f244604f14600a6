"""Grow regions along a traced graph, and run the graph: its regions on blocked images, the rest as PyTorch does."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from bppsa._modules.calls import is_plain
from bppsa._pruned.draft import Draft, KeptByLayer, Layer, Parameter, Value
from bppsa._pruned.layers import lay
from bppsa.codegen.blocked.native import LANES
from bppsa.errors import Reason, Unsupported
from bppsa.runtime.blocked.apply import run
from bppsa.runtime.blocked.region import Region

Environment = dict[fx.Node, Any]
form = attrgetter("dtype", "shape", "layout")


@dataclass(frozen=True, eq=False)
class Segment:
    """Nodes `start` to `stop` of a graph. region: None where PyTorch runs them."""

    start: int
    stop: int
    region: Region | None = None
    inputs: tuple[fx.Node, ...] = ()
    outputs: tuple[tuple[fx.Node, ...], ...] = ()  # for each of the region's, the names it has outside
    params: tuple[Parameter, ...] = ()
    layers: tuple[Layer, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()  # of the inputs
    dtype: torch.dtype | None = None  # of all that the region computes with
    constants: tuple[tuple[fx.Node, Any], ...] = ()  # what nodes of the region give that is no tensor, and its value
    aliases: tuple[tuple[fx.Node, fx.Node], ...] = ()  # nodes that give an input of the region as it is, and that
    ended: Reason | None = None  # why it goes no further


def grow(
    graph: list[fx.Node],
    start: int,
    known: Environment,
    root: nn.Module,
    memo: KeptByLayer,
) -> Segment:
    """The longest region that begins at node `start`; known: what the nodes before it gave. It may be empty."""
    draft = Draft(root, memo)
    found: Environment = {}
    ended, stop = None, start

    def value_of(node: fx.Node) -> Any:
        if node not in found:
            outer = known[node]
            found[node] = draft.enter(outer, node) if is_image(outer) else outer
        return found[node]

    for node in graph[start:]:
        before = draft.mark()
        draft.node = node
        try:
            args, kwargs = map_arg((node.args, node.kwargs), value_of)
            result = lay(draft, node, args, kwargs)
        except Unsupported as reason:
            draft.back_to(before)
            ended = reason.reason
            break
        for argument in node.all_input_nodes:
            if result is found[argument] and isinstance(result, Value) and len(argument.users) > 1:
                draft.shared.add(result.number)
        found[node] = result
        stop += 1
    return finish(draft, graph[start:stop], found, start, ended, known)


def finish(
    draft: Draft, inside: list[fx.Node], found: Environment, start: int, ended: Reason | None, known: Environment
) -> Segment:
    names: dict[int, list[fx.Node]] = {}
    constants = []
    for node in inside:
        if any(user not in inside for user in node.users):
            if isinstance(found[node], Value):
                names.setdefault(found[node].number, []).append(node)
            else:
                constants.append((node, found[node]))
    outputs = [draft.values[number] for number in names if number not in draft.inputs]
    aliases = [(name, draft.inputs[v]) for v in names if v in draft.inputs for name in names[v]]
    used = {v for node in draft.nodes for v in node.inputs}
    draft.inputs = {v: node for v, node in draft.inputs.items() if v in used}
    return Segment(
        start,
        start + len(inside),
        draft.region(outputs),
        tuple(draft.inputs.values()),
        tuple(tuple(names[v.number]) for v in outputs),
        tuple(draft.params),
        tuple(draft.layers),
        tuple(tuple(known[node].shape) for node in draft.inputs.values()),
        draft.dtype,
        tuple(constants),
        tuple(aliases),
        ended,
    )


def is_image(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and is_plain(value)
        and value.is_cpu
        and value.dtype in LANES
        and value.dim() in (2, 4)
        and value.numel() > 0
    )


def fits(segment: Segment, known: Environment) -> bool:
    """Whether its inputs are what the region was made for."""
    inputs = [known[node] for node in segment.inputs]
    return all(map(is_image, inputs)) and all(
        x.shape == shape and x.dtype is segment.dtype for x, shape in zip(inputs, segment.shapes, strict=True)
    )


def operands(segment: Segment, known: Environment) -> Taken | Reason:
    """The parameters that the region takes, or why it cannot take them, or its inputs, in this call."""
    if not fits(segment, known):
        return Reason("its input is not of the shape and dtype that its region was made for")
    try:
        tensors = [parameter.now() for parameter in segment.params]
        for layer in segment.layers:
            layer.entries.renew()
    except Unsupported as error:  # a mask or a weight that has become another one
        return error.reason
    if all(t.dtype is segment.dtype and t.is_cpu and is_plain(t) for t in tensors):
        return Taken(tensors, segment)
    return Reason("not all it reads is of the dtype it was made for, plain and on the CPU")


class Taken:
    """Parameters that a region has taken, and may take again while `holds` and while its modules are as they were.
    depends: what its steps depended on then."""

    def __init__(self, tensors: list[Tensor], segment: Segment) -> None:
        assert segment.region is not None
        self.tensors = tensors
        self.depends = segment.region.depends()
        self._own = all(map(Parameter.is_own, segment.params, tensors))
        self._types, self._forms, self._memory = (list(map(of, tensors)) for of in (type, form, Tensor.data_ptr))

    def holds(self) -> bool:
        """`Tensor.data` gives a Parameter that stays the same one another form, memory, or the bit that negates."""
        return (
            self._own
            and list(map(type, self.tensors)) == self._types
            and list(map(form, self.tensors)) == self._forms
            and list(map(Tensor.data_ptr, self.tensors)) == self._memory
            and not any(map(Tensor.is_neg, self.tensors))
        )


def run_region(segment: Segment, known: Environment, taken: Taken) -> None:
    assert segment.region is not None
    inputs = [known[node] for node in segment.inputs]
    outputs = run(segment.region, [*inputs, *taken.tensors], taken.depends)
    for names, output in zip(segment.outputs, outputs, strict=True):
        known.update(dict.fromkeys(names, output))
    known.update(segment.constants)
    known.update((name, known[source]) for name, source in segment.aliases)


def run_node(node: fx.Node, known: Environment, root: nn.Module) -> Any:
    """As PyTorch runs it."""
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        call: Any = module if module is not root else root._bppsa_plain
        return call(*args, **kwargs)
    if node.op == "call_function":
        return node.target(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    value: Any = root
    for name in str(node.target).split("."):  # get_attr
        value = getattr(value, name)
    return value
