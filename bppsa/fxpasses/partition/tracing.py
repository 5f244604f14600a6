"""A model's forward as a graph of calls of PyTorch's modules and functions, by torch.fx.

The example goes along: whoever holds a proxy holds the example's value as well, so that each node's cost is known, and
what Python decides by shapes, dtypes and devices is decided as for the example. Each such decision is a node of the
graph that refuses a call which would decide otherwise; so a graph holds for all batch sizes unless Python looked at it.
What depends on the values of tensors cannot be decided, and is an error that names the line.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.arguments import Arguments, is_fixed, leaf_of
from bppsa.fxpasses.partition.decisions import as_decided, is_decidable
from bppsa.fxpasses.partition.effects import Facts, Watch, facts_of
from bppsa.fxpasses.partition.overlooked import recorded
from bppsa.fxpasses.partition.places import place_here, place_of
from bppsa.fxpasses.partition.regions import region_now

MEND = "cut the model by hand, with stages=[module, ...]"
# They make tensors from sizes alone: a proxy among their arguments does not by itself turn them into nodes.
FACTORIES = (
    *(torch.arange, torch.as_tensor, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.rand),
    *(torch.randint, torch.randn, torch.randperm, torch.tensor, torch.tril_indices, torch.triu_indices, torch.zeros),
)
OPENED = (nn.Sequential, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder)  # they hold layers
WHAT_FORWARDS_RAISE = (
    *(TraceError, TypeError, ValueError, AttributeError, RuntimeError),
    *(LookupError, NameError, AssertionError),
)


@dataclass(frozen=True)
class Graph:
    """graph: a placeholder for each argument; the output is a tuple of nodes. Nodes have Facts in meta["facts"].

    result: what the model returns, with the number of an output, as an Output, in the place of each.
    """

    graph: fx.Graph
    constants: dict[str, Tensor]  # of which get_attr nodes read
    result: Any
    examples: tuple[Any, ...]  # of the outputs

    def assemble(self, outputs: Sequence[Any]) -> Any:
        return tree_map(lambda leaf: outputs[leaf.number] if isinstance(leaf, Output) else leaf, self.result)

    def example(self) -> Any:
        """What it returns for the example."""
        return self.assemble(self.examples)


@dataclass(frozen=True)
class Output:
    number: int


class Traced(fx.Proxy):
    """Stands for what a node gives. What Python has to know at once is decided by the example."""

    tracer: Tracer
    example: Any

    def __getattr__(self, name: str) -> Any:
        if callable(getattr(self.example, name)):  # raises what the model would raise
            return lambda *args, **kwargs: self.tracer.create_proxy("call_method", name, (self, *args), kwargs)
        return self.tracer.create_proxy("call_function", getattr, (self, name), {})

    def __index__(self) -> int:
        return self.tracer.decided(self, "index")

    def __int__(self) -> int:
        return self.tracer.decided(self, "int")

    def __float__(self) -> float:
        return self.tracer.decided(self, "float")

    def __len__(self) -> int:
        return self.tracer.decided(self.tracer.create_proxy("call_function", len, (self,), {}), "index")

    def __contains__(self, item: Any) -> bool:
        return bool(self.tracer.create_proxy("call_function", operator.contains, (self, item), {}))

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})


def in_place(name: str) -> Callable[[Traced, Any], Traced]:
    change = getattr(operator, name)
    return lambda proxy, other: proxy.tracer.create_proxy("call_function", change, (proxy, other), {})


CHANGING = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
for sign in CHANGING:
    setattr(Traced, f"__i{sign}__", in_place(f"__i{sign}__"))


class Tracer(fx.Tracer):
    proxy_buffer_attributes = True

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(autowrap_modules=(math,), autowrap_functions=FACTORIES)
        self._autowrap_search.append(torch)  # where the factories are looked up
        self.arguments = arguments
        self.constants: dict[str, Tensor] = {}
        self.seen: set[StorageWeakRef] = set()  # storages of arguments, of attributes and of what nodes give
        self.running = False  # a leaf, for the example: all that it calls is its own affair
        self.result: Any = None
        self.examples: tuple[Any, ...] = ()
        used = {t.device.type for t in tree_leaves(arguments.examples) if isinstance(t, Tensor)}
        self.devices = sorted({"cpu", *filter(torch.amp.is_autocast_available, used)})  # the meta device has none
        self.outside = region_now(self.devices)

    # What becomes a node

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, nn.RNNBase):
            return True
        return not isinstance(m, OPENED) and super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.running:
            return forward(*args, **kwargs)
        if m is self.root:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self.running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        named = zip(self.arguments.names, self.arguments.examples, strict=True)
        args, kwargs = self.arguments.call([self.placeholder(name, example) for name, example in named])

        def forward(root: nn.Module) -> tuple[Any, ...]:
            leaves, spec = tree_flatten(root(*args, **kwargs))
            outputs, self.result = numbered(leaves, spec)
            self.examples = tuple(output.example for output in outputs)
            return outputs

        return forward, [self.root]

    def placeholder(self, name: str, example: Any) -> Any:
        """A proxy for the argument, or a container like the example of proxies for what is in it."""
        proxy = Traced(self.create_node("placeholder", name, (), {}), self)
        proxy.example = example
        self.note(proxy, Watch(), decidable=True)
        leaves, spec = tree_flatten(example)
        if not leaves or all(map(is_fixed, leaves)):
            return example
        if leaves[0] is example:
            return proxy
        gets = [self.create_proxy("call_function", leaf_of, (proxy, i), {}) for i in range(len(leaves))]
        return tree_unflatten([a if is_fixed(a) else get for a, get in zip(leaves, gets, strict=True)], spec)

    def proxy(self, node: fx.Node) -> Traced:
        return Traced(node, self)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, fx.Proxy):
            return a.node
        if isinstance(a, Tensor) and not isinstance(a, nn.Parameter) and not self.is_buffer(a):
            return self.create_node("get_attr", self.constant(a), (), {})
        return super().create_arg(a)

    def is_buffer(self, tensor: Tensor) -> bool:
        return any(tensor is buffer for buffer in self.root.buffers())

    def constant(self, tensor: Tensor) -> str:
        if tensor.requires_grad:
            raise TraceError("a tensor was computed from parameters where no call of a layer or function can be seen")
        for name, known in self.constants.items():
            if known is tensor:
                return name
        name = f"_constant{len(self.constants)}"
        self.constants[name] = tensor
        return name

    # The example goes along

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Traced:
        proxy: Traced = super().create_proxy(kind, target, args, kwargs, *rest, **options)
        proxy.node.meta["region"] = region_now(self.devices).since(self.outside)
        args, kwargs = fx.node.map_aggregate((args, kwargs), lambda a: a.example if isinstance(a, Traced) else a)
        watch = Watch()
        self.running = True
        try:
            with torch.no_grad(), watch:
                proxy.example = self.run(kind, target, args, kwargs)
        finally:
            self.running = False
        self.note(proxy, watch, is_decidable(proxy.node, proxy.example))
        return proxy

    def run(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        if kind == "get_attr":
            return operator.attrgetter(target)(self.root)
        if kind == "call_module":
            return self.root.get_submodule(target)(*args, **kwargs)
        if kind == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def note(self, proxy: Traced, watch: Watch, decidable: bool) -> None:
        facts = facts_of(proxy.example, watch, self.seen)
        self.seen |= facts.holds
        container = facts.tensors > 0 and not isinstance(proxy.example, Tensor)
        proxy.node.meta.update(facts=facts, container=container, decidable=decidable and not facts.tensors)

    # What Python decides

    def decided(self, proxy: Traced, how: str) -> Any:
        if not proxy.node.meta["decidable"]:
            raise TraceError("Python decides by the values of a tensor")
        answer = as_decided(proxy.example, how)
        arguments = (proxy.node, how, answer, place_here())
        self.create_node("call_function", as_decided, arguments, {}).meta.update(facts=Facts(), decidable=True)
        return answer

    def to_bool(self, obj: fx.Proxy) -> bool:
        return self.decided(obj, "bool")

    def iter(self, obj: Any) -> Iterator[Any]:
        if isinstance(obj.example, dict):
            return iter(obj.example)
        return (obj[i] for i in range(len(obj)))

    def keys(self, obj: Any) -> Any:
        return obj.example.keys()


def numbered(leaves: list[Any], spec: TreeSpec) -> tuple[tuple[Any, ...], Any]:
    """The outputs, each once, and the structure of the result with their numbers in it."""
    numbers: dict[int, int] = {}
    outputs: list[Any] = []
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, fx.Proxy):
            if id(leaf.node) not in numbers:
                numbers[id(leaf.node)] = len(outputs)
                outputs.append(leaf)
            leaves[i] = Output(numbers[id(leaf.node)])
        elif not isinstance(leaf, (Tensor, bool, int, float, complex, str, type(None))):
            raise TraceError(
                f"the model returns a {type(leaf).__name__}, in which no tensors are found; return a tuple or a dict, "
                f"or register the class as a pytree"
            )
    return tuple(outputs), tree_unflatten(leaves, spec)


def trace(model: nn.Module, arguments: Arguments) -> Graph:
    """The model's graph in its present mode, with facts about each node.

    Raises PartitionError where it cannot be traced.
    """
    tracer = Tracer(arguments)
    try:
        with torch.enable_grad(), recorded(tracer.create_proxy, lambda: tracer.running):
            graph = tracer.trace(model)
        for node in graph.nodes:
            node.meta.pop("is_wrapped", None)  # by which a GraphModule would wrap the op for all that is traced later
    except PartitionError:
        raise
    except WHAT_FORWARDS_RAISE as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PartitionError(
            f"{type(model).__name__} cannot be traced: {said}, at {place_of(error)}; {MEND}"
        ) from error
    return Graph(graph, tracer.constants, tracer.result, tracer.examples)
