"""From an ExportedProgram to a CapturedGraph: what is whole is called again, regions are marks of nodes, and each node
has run for the example, so that its cost and what it changes are known."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from itertools import count
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.call.arguments import Arguments, leaf_of
from bppsa.fxpasses.partition.call.refusals import BY_HAND
from bppsa.fxpasses.partition.capture.contents import is_lasting
from bppsa.fxpasses.partition.capture.exported import INSIDE, Exported
from bppsa.fxpasses.partition.capture.graph import CapturedGraph, Output
from bppsa.fxpasses.partition.capture.lines import checkpoint_of, place_in
from bppsa.fxpasses.partition.capture.sizes import Sizes, expression
from bppsa.fxpasses.partition.capture.whole import Custom, OpaqueCall, TensorNumber, replaced
from bppsa.fxpasses.partition.ops.changes import state_in
from bppsa.fxpasses.partition.ops.effects import EffectWatch, Facts, facts_of, storage
from bppsa.fxpasses.partition.ops.regions import NodeModes, enter
from bppsa.fxpasses.theirs import theirs

aten, HOPS = torch.ops.aten, torch.ops.higher_order
# Its functions put a transform on the process's stack and take it off again: if one fails in between, it stays there.
TRANSFORMS = "torch._functorch.predispatch"
SIZES = (aten.sym_size.int, aten.sym_numel.default, aten.sym_stride.int)
OUTSIDE = NodeModes(True, ())
# Leaves that the code of torch.fx stands for.
WRITTEN = (*fx.node.base_types, fx.Node, type(None), torch.Size, slice, range, Enum, type(...))


def note_made(node: fx.Node, value: Any) -> None:
    """Writes to meta["made"] what a tensor's dtype and shape are, or (None, the number) for a number; in symbols."""
    whole = node.op == "call_module" or isinstance(node.target, Custom)
    only = value[0] if whole and isinstance(value, (list, tuple)) and len(value) == 1 else value
    if isinstance(only, Tensor):
        node.meta["made"] = only.dtype, tuple(map(expression, only.shape))
    elif isinstance(only, (torch.SymInt, torch.SymFloat)):
        node.meta["made"] = None, expression(only)


def place_from(node: fx.Node) -> str:
    """The user's line that made a node, or the first one behind it that has a line: no op is the start of a vmap."""
    while node.op != "root" and not place_in(node):
        node = node.next
    return place_in(node)


def copied(model: nn.Module, arguments: Arguments, found: Exported, sizes: Sizes) -> CapturedGraph:
    """The graph, with a first node that checks sizes. Raises PartitionError for what a stage cannot run."""
    return Copy(model, arguments, found).whole(sizes)


class Copy:
    """values: of each node, what it gave for the example."""

    def __init__(self, model: nn.Module, arguments: Arguments, found: Exported) -> None:
        self.model, self.arguments = model, arguments
        self.program, self.spec, self.calls = found.program, found.spec, found.calls
        self.graph = fx.Graph()
        self.values: dict[fx.Node, Any] = {}
        self.constants: dict[str, Tensor] = {}
        self.seen: set[StorageWeakRef] = set()  # storages of arguments, of attributes and of what nodes give
        self.given: set[StorageWeakRef] = set()  # those of arguments

    def whole(self, sizes: Sizes) -> CapturedGraph:
        module, signature = self.program.graph_module, self.program.graph_signature
        placeholders = [self.placeholder(*of) for of in zip(self.arguments.names, self.arguments.examples, strict=True)]
        check = self.graph.call_function(sizes, tuple(placeholders))
        check.meta.update(facts=Facts(), container=False, decidable=False)
        leaves = iter([part for node in placeholders for part in self.parts(node)])
        attributes = {spec.arg.name: spec for spec in signature.input_specs}
        env: dict[fx.Node, Any] = {}
        for node in module.graph.find_nodes(op="placeholder"):
            spec = attributes[node.name]
            if spec.kind is InputKind.USER_INPUT:
                env[node] = next(leaves)
            elif node.users:
                env[node] = self.attribute(spec, place_in(next(iter(node.users))))
        outputs = self.copied(module, env, OUTSIDE)
        numbers: dict[fx.Node, int] = {}
        result = [
            Output(numbers.setdefault(leaf, len(numbers))) if isinstance(leaf, fx.Node) else leaf for leaf in outputs
        ]
        self.graph.output(tuple(numbers))
        examples = tuple(map(self.values.__getitem__, numbers))
        return CapturedGraph(self.graph, self.constants, tuple(result), self.spec, examples, sizes)

    # What there is before the first op

    def placeholder(self, name: str, example: Any) -> fx.Node:
        node = self.made(self.graph.placeholder(name), lambda: example, decidable=True)
        self.given |= node.meta["facts"].holds
        return node

    def parts(self, node: fx.Node) -> list[fx.Node]:
        """A node for each tensor of what a node gives."""
        leaves, spec = tree_flatten(self.values[node])
        if spec.is_leaf():
            return [node] if isinstance(leaves[0], Tensor) else []
        return [self.part(node, i) for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def part(self, node: fx.Node, i: int) -> fx.Node:
        new = self.graph.call_function(leaf_of, (node, i))
        return self.made(new, lambda: leaf_of(self.values[node], i), decidable=True)

    def attribute(self, spec: Any, place: str) -> fx.Node:
        """A Parameter, a buffer, or another tensor that the forward reads. place: where."""
        path = spec.target.removeprefix(INSIDE)
        value: Any = self.model
        for name in path.split("."):
            value = getattr(value, name, None)
        if value is None:
            value = self.program.constants[spec.target]
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER):
            path = self.constant(value, f"{place or type(self.model).__name__}: the forward reads {path}")
        return self.made(self.graph.get_attr(path), lambda: value, decidable=False)

    def constant(self, value: Any, read: str) -> str:
        if not isinstance(value, Tensor) or value.requires_grad:
            raise PartitionError(
                f"{read}, a tensor that wants a gradient and is no Parameter of the model; make it one, as self.weight "
                f"= nn.Parameter(tensor)"
            )
        if value.is_meta:
            raise PartitionError(
                f"{read}, a tensor on the meta device that is neither a Parameter nor a buffer, so it never gets "
                f"values; make it a buffer, by self.register_buffer(name, tensor)"
            )
        numbered = (f"_constant{number}" for number in count(len(self.constants)))
        name = next(name for name in numbered if name not in self.constants and not hasattr(self.model, name))
        self.constants[name] = value
        return name

    # Ops

    def copied(self, module: fx.GraphModule, env: dict[fx.Node, Any], region: NodeModes) -> Any:
        """What the output node of the module's graph is given."""
        for node in module.graph.nodes:
            if node.op == "output":
                return fx.node.map_arg(node.args[0], env.__getitem__)
            if node.op == "get_attr":
                env[node] = operator.attrgetter(str(node.target))(module)
            elif node.op != "placeholder":
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
                env[node] = HANDLED.get(node.target, Copy.usual)(self, node, args, kwargs, region)
        raise AssertionError("a graph without an output")

    def usual(self, node: fx.Node, args: Any, kwargs: Any, region: NodeModes) -> fx.Node | None:
        if not node.users and "assert" in str(node.target):
            return None  # of shapes, which are checked with the arguments
        if getattr(node.target, "__module__", "") == TRANSFORMS:
            raise PartitionError(
                f"{place_from(node) or type(self.model).__name__}: torch.vmap, or another transform of torch.func, "
                f"calls functions of its own, which no stage can hold; compute with whole tensors, or {BY_HAND}"
            )
        if any(isinstance(arg, fx.GraphModule) for arg in tree_leaves((args, kwargs))):
            raise PartitionError(
                f"{place_in(node)}: {getattr(node.target, '__name__', node.target)} runs functions of its own, which "
                f"no stage can hold; do the same by torch.where"
            )
        return self.call(node, self.graph.call_function(node.target, args, kwargs), region)

    def getitem(self, node: fx.Node, args: Any, kwargs: Any, region: NodeModes) -> Any:
        """Takes an item, also of what several nodes stand for."""
        source, index = args
        return self.usual(node, args, kwargs, region) if isinstance(source, fx.Node) else source[index]

    def without_gradients(self, node: fx.Node, args: Any, kwargs: Any, region: NodeModes) -> Any:
        enabled, inner, *given = args
        return self.inlined(inner, given, NodeModes(enabled, region.autocast))

    def autocast(self, node: fx.Node, args: Any, kwargs: Any, region: NodeModes) -> Any:
        device, dtype, enabled, _, inner, *given = args
        cast = (device, enabled, dtype or torch.get_autocast_dtype(device))
        return self.inlined(inner, given, NodeModes(region.gradients, (*region.autocast, cast)))

    def inlined(self, inner: fx.GraphModule, given: Sequence[Any], region: NodeModes) -> Any:
        return self.copied(inner, dict(zip(inner.graph.find_nodes(op="placeholder"), given, strict=True)), region)

    def whole_call(self, node: fx.Node, args: Any, kwargs: Any, region: NodeModes) -> list[fx.Node]:
        """A module or a custom Function; the tensors that it returns."""
        tensors, sizes, number = args
        call: OpaqueCall = self.calls.calls[number]
        given, named = call.arguments(tensors, sizes)
        if isinstance(call.target, Custom):
            new = self.graph.call_function(*self.written(call.target, given, named, place_in(node)))
        else:
            new = self.graph.call_module(call.target, given, named)
        self.call(node, new, region)
        leaves, spec = tree_flatten(self.calls.results[number])
        if spec.is_leaf():
            return [new]
        parts = [self.part(new, i) for i, leaf in enumerate(leaves) if isinstance(leaf, TensorNumber)]
        for part, value in zip(parts, node.meta["val"], strict=True):
            note_made(part, value)
        return parts

    def written(self, target: Custom, args: Any, kwargs: Any, place: str) -> tuple[Custom, Any, Any]:
        """A Function and what it is given, so that torch.fx can write it. Raises PartitionError where an argument is of
        this forward alone."""
        leaves, spec = tree_flatten((args, kwargs))
        held = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, WRITTEN)}
        for leaf in held.values():
            if not is_lasting(leaf, self.model):
                raise PartitionError(
                    f"{place}: {target.__name__}.apply is given {leaf!r}, which the forward makes, and stages do not "
                    f"share; give it tensors and numbers, or what is an attribute of a module"
                )
        if not held:
            return target, args, kwargs
        args, kwargs = tree_unflatten(replaced(leaves, dict.fromkeys(held)), spec)
        return replace(target, held=tuple(held.items())), args, kwargs

    def assigned(self, node: fx.Node, args: Any, kwargs: Any, region: NodeModes) -> fx.Node:
        """`buffer += 1` sets the attribute to what it is: export copies the buffer to itself."""
        target, source = args[:2]
        if isinstance(source, fx.Node) and self.values[source] is self.values[target]:
            return source
        return self.usual(node, args, kwargs, region)

    def call(self, node: fx.Node, new: fx.Node, region: NodeModes) -> fx.Node:
        """`new`, in the place of `node`."""
        new.meta["place"] = place_in(node)
        note_made(new, node.meta.get("val"))
        if region != OUTSIDE:
            new.meta["region"] = region
        if (checkpoint := checkpoint_of(node)) is not None:
            new.meta["recomputed"] = checkpoint
        args, kwargs = fx.node.map_arg((new.args, new.kwargs), self.values.__getitem__)
        sources = new.all_input_nodes
        decidable = node.target in SIZES or (
            bool(sources) and all(source.meta["decidable"] and source.op != "placeholder" for source in sources)
        )
        with enter(region.gradients, *region.autocast):
            return self.made(new, lambda: self.run(new, args, kwargs), decidable)

    def run(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        run = self.model.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        return theirs(run, *args, **kwargs)

    def made(self, node: fx.Node, run: Callable[[], Any], decidable: bool) -> fx.Node:
        with torch.no_grad(), EffectWatch() as watch:
            value = self.values[node] = run()
        called = state_in(self.model.get_submodule(str(node.target))) if node.op == "call_module" else {}
        found = facts_of(value, watch, self.seen, frozenset(map(storage, called.values())))
        self.seen |= found.holds
        container = found.tensors > 0 and not isinstance(value, Tensor)
        node.meta.update(facts=found, container=container, decidable=decidable and not found.tensors)
        if found.writes & self.given:
            raise PartitionError(
                f"{node.meta['place']}: an argument is changed in place, where other stages read it; change a copy, as "
                f"x.clone()"
            )
        return node


HANDLED: dict[Any, Callable[..., Any]] = {
    operator.getitem: Copy.getitem,
    HOPS.wrap_with_set_grad_enabled: Copy.without_gradients,
    HOPS.wrap_with_autocast: Copy.autocast,
    torch.ops.bppsa.whole.default: Copy.whole_call,
    aten.copy_.default: Copy.assigned,
}
