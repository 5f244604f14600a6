"""A module's forward as a graph of calls of its layers and of functions, by torch.fx.

The graph holds as long as what Python decided on while tracing does: whether each module trains, and the plain numbers
and flags that modules carry. `state` is all of that, and a graph belongs to one state.
"""

from __future__ import annotations

import inspect
from typing import Any
from weakref import ref

from torch import fx, nn
from torch.fx.proxy import TraceError

from bppsa._pruned.masks import LAYERS, is_pruning
from bppsa._pruned.rewritten import is_reported
from bppsa.errors import Reason, Unsupported, first_line
from bppsa.fxpasses.partition.kept import ALONE

PLAIN = (bool, int, float, str, type(None))
CONTAINERS = (tuple, list, set, dict)
LARGEST = 1024  # elements of a container that is looked into, as those of flags and sizes are
OF_ALL = frozenset(vars(nn.Module()))  # attributes that any module has
LIVE = ("momentum", "eps")  # of a batch norm, which asks for them in each call
MEND = "compile the part of the model that has no control flow of its own"


class Tracer(fx.Tracer):
    traced_func_name = "_bppsa_forward"

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, LAYERS) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.is_leaf_module(m, "") and has_hooks(m):
            raise Unsupported(Reason(f"hooks of {self.path_of_module(m)}, a module of several layers"))
        if not self.is_leaf_module(m, "") and has_own_forward(m):
            raise Unsupported(Reason(f"{self.path_of_module(m)} has a forward that its class has not"))
        if is_reported(m):
            raise Unsupported(Reason(f"{self.path_of_module(m)} is a compiled model of its own"))
        return super().call_module(m, forward, args, kwargs)


def trace(module: nn.Module) -> fx.Graph:
    """`module`, whose class has its own forward as `_bppsa_forward`. Raises Unsupported where Python decides by values.

    Arguments that have a default are taken to be left out.
    """
    if isinstance(module, LAYERS):
        return alone()
    signature = inspect.signature(type(module)._bppsa_forward)  # type: ignore[attr-defined]
    parameters = list(signature.parameters.values())[1:]
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise Unsupported(Reason("a forward with *args or **kwargs", mend=MEND))
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    tracer = Tracer()
    try:  # what a proxy cannot do raises whatever the user's code, or PyTorch, raises over it
        with ALONE:
            return tracer.trace(module, concrete_args=defaults or None)
    except Unsupported:
        raise
    except (TraceError, TypeError, ValueError, AttributeError, RuntimeError, KeyError, IndexError) as error:
        raise Unsupported(Reason(f"its forward cannot be traced: {first_line(error)}", mend=MEND)) from error
    finally:  # it is in a cycle, and would hold the module and the masked weights it has now until that is collected
        tracer.__dict__.clear()


def alone() -> fx.Graph:
    """Of a module that is a layer itself."""
    graph = fx.Graph()
    graph.output(graph.call_module("", (graph.placeholder("input"),)))
    return graph


def state(module: nn.Module) -> tuple[Any, ...]:
    """What a trace, and which layers have a kernel, depends on besides the inputs."""
    found: list[Any] = []
    for child in module.modules():
        found += ref(child), type(child)  # another module may take its place
        found.append(child is not module and not has_only_pruning_hooks(child))  # its own hooks are run around it
        found.append(child is not module and has_own_forward(child))
        found += map(type, child._parameters.values())  # torch.func.functional_call swaps them for other tensors
        found += [name for name, _ in child.named_children()]  # a forward may ask by them
        own = child.__dict__
        found += [(k, v) for k, v in own.items() if type(v) in PLAIN and k not in LIVE and not k.startswith("_bppsa")]
        found += map(contents, containers(child))
    return tuple(found)


def containers(module: nn.Module) -> list[Any]:
    """Attributes in which its forward may look for flags and sizes."""
    own = module.__dict__.items()
    return [v for k, v in own if isinstance(v, CONTAINERS) and k not in OF_ALL and not k.startswith("_bppsa")]


def changeable(container: Any, depth: int = 6) -> list[Any]:
    """`container` and those in it that `contents` looks into, but for tuples."""
    if depth == 0:
        return []
    items = container.values() if isinstance(container, dict) else container
    inner = [item for item in items if isinstance(item, CONTAINERS)] if len(container) <= LARGEST else []
    own = [] if isinstance(container, tuple) else [container]
    return [*own, *(found for item in inner for found in changeable(item, depth - 1))]


def contents(value: Any, depth: int = 6) -> Any:
    """What is plain in a container, hashable."""
    if type(value) in PLAIN:
        return value
    if not isinstance(value, CONTAINERS) or len(value) > LARGEST or depth == 0:
        return type(value)
    items = value.items() if isinstance(value, dict) else value
    return type(value), *(contents(item, depth - 1) for item in items)


def has_only_pruning_hooks(module: nn.Module) -> bool:
    return not has_hooks(module) or (
        all(map(is_pruning, module._forward_pre_hooks.values()))
        and not (module._forward_hooks or module._backward_hooks or module._backward_pre_hooks)
    )


def has_own_forward(module: nn.Module) -> bool:
    """One that somebody has put over its class's."""
    return "forward" in module.__dict__


def has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
