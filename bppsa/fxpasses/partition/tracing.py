"""A model's forward as a graph of calls of PyTorch's modules and functions, by torch.fx.

The example goes along: whoever holds a proxy holds the example's value as well, so that each node's cost is known, and
what Python decides by shapes, dtypes and devices is decided as for the example. Each such decision is a node of the
graph that refuses a call which would decide otherwise; so a graph holds for all batch sizes unless Python looked at it.
What depends on the values of tensors cannot be decided, and is an error that names the line.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.arguments import Arguments, is_fixed, leaf_of
from bppsa.fxpasses.partition.decisions import as_decided, asks_autograd, is_decidable
from bppsa.fxpasses.partition.effects import Facts, Watch, facts_of
from bppsa.fxpasses.partition.graph import Graph, numbered
from bppsa.fxpasses.partition.kept import ALONE
from bppsa.fxpasses.partition.overlooked import recorded
from bppsa.fxpasses.partition.places import place_here
from bppsa.fxpasses.partition.refusals import WHAT_FORWARDS_RAISE, refusal
from bppsa.fxpasses.partition.regions import region_now
from bppsa.fxpasses.partition.traced import Traced

# They make tensors from sizes alone: a proxy among their arguments does not by itself turn them into nodes.
FACTORIES = (
    *(torch.arange, torch.as_tensor, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.rand),
    *(torch.randint, torch.randn, torch.randperm, torch.tensor, torch.tril_indices, torch.triu_indices, torch.zeros),
)
OPENED = (nn.Sequential, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder)  # they hold layers


def trace(model: nn.Module, arguments: Arguments) -> Graph:
    """The model's graph in its present mode, with facts about each node.

    Raises PartitionError where it cannot be traced.
    """
    tracer = Tracer(arguments)
    try:
        with ALONE, torch.enable_grad(), recorded(model, tracer.create_proxy, lambda: tracer.running):
            graph = tracer.trace(model)
        for node in graph.nodes:
            node.meta.pop("is_wrapped", None)  # by which a GraphModule would wrap the op for all that is traced later
    except PartitionError:
        raise
    except WHAT_FORWARDS_RAISE as error:
        raise refusal(model, error) from error
    return Graph(graph, tracer.constants, tracer.result, tracer.examples)


class Tracer(fx.Tracer):
    proxy_buffer_attributes = True

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(autowrap_modules=(math,), autowrap_functions=FACTORIES)
        self._autowrap_search.append(torch)  # where the factories are looked up
        self.arguments = arguments
        self.constants: dict[str, Tensor] = {}
        self.seen: set[StorageWeakRef] = set()  # storages of arguments, of attributes and of what nodes give
        self.given: set[StorageWeakRef] = set()  # those of arguments
        self.below_node = False  # a leaf runs for the example: all that it calls is its own affair
        self.thread = threading.get_ident()
        self.result: Any = None
        self.examples: tuple[Any, ...] = ()
        used = {t.device.type for t in tree_leaves(arguments.examples) if isinstance(t, Tensor)}
        self.devices = sorted({"cpu", *filter(torch.amp.is_autocast_available, used)})  # the meta device has none
        self.outside = region_now(self.devices)

    @property
    def running(self) -> bool:
        """Whether what is called now is no part of the graph: below a node, or in a thread that does not trace."""
        return self.below_node or threading.get_ident() != self.thread

    # What becomes a node

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, nn.RNNBase):
            return True
        return not isinstance(m, OPENED) and super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.running or m is self.root:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self.running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        named = zip(self.arguments.names, self.arguments.examples, strict=True)
        args, kwargs = self.arguments.call([self.placeholder(name, example) for name, example in named])

        def forward(root: nn.Module) -> tuple[Any, ...]:
            outputs, self.result = numbered(*tree_flatten(root(*args, **kwargs)))
            self.examples = tuple(output.example for output in outputs)
            return outputs

        return forward, [self.root]

    def placeholder(self, name: str, example: Any) -> Any:
        """A proxy for the argument, or a container like the example of proxies for what is in it."""
        proxy = Traced(self.create_node("placeholder", name, (), {}), self)
        proxy.example = example
        self.note(proxy, Watch(), decidable=True)
        self.given |= proxy.node.meta["facts"].holds
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
        if isinstance(a, torch.Generator):
            raise TraceError(
                "random numbers are drawn from a generator of the model's own, and micro-batches draw each from "
                "theirs; leave generator= out"
            )
        if isinstance(a, Tensor) and not isinstance(a, nn.Parameter) and not self.is_buffer(a):
            return self.create_node("get_attr", self.constant(a), (), {})
        return super().create_arg(a)

    def is_buffer(self, tensor: Tensor) -> bool:
        return any(tensor is buffer for buffer in self.root.buffers())

    def constant(self, tensor: Tensor) -> str:
        if tensor.requires_grad:
            raise TraceError(
                "a tensor was computed from parameters alone, by ops that no graph saw; read them as attributes, such "
                "as self.layer.weight, and not by parameters()"
            )
        if tensor.is_meta:
            raise PartitionError(
                f"{place_here()}: a tensor on the meta device is read that is neither a Parameter nor a buffer, so it "
                f"never gets values; make it a buffer, by self.register_buffer(name, tensor)"
            )
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
        self.below_node = True
        try:
            with torch.no_grad(), watch:
                proxy.example = self.run(kind, target, args, kwargs)
        finally:
            self.below_node = False
        self.note(proxy, watch, is_decidable(proxy.node))
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
        if facts.writes & self.given:
            raise TraceError("an argument is changed in place, where other stages read it; change a copy, as x.clone()")
        if facts.writes:
            proxy.node.meta["place"] = place_here()

    # What Python decides

    def decided(self, proxy: Traced, how: str) -> Any:
        if not proxy.node.meta["decidable"]:
            raise TraceError(
                "Python asks whether a gradient flows to a tensor, which differs from call to call; decide by "
                "self.training"
                if asks_autograd(proxy.node)
                else "Python needs the value of a tensor (as in if, while, int() or float()), which is there only when "
                "the model runs; compute with torch.where or a mask, or take the test out"
            )
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
