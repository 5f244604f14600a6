"""The calls of recurrent modules in a graph, as layers that run one after another."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from bppsa.common.stages import Layer
from bppsa.errors import ScheduleError
from bppsa.fxpasses.over_time.verdict import MEND


def layers_of(graph: fx.GraphModule) -> tuple[Layer, ...]:
    """The layers in the order in which they run. Raises ScheduleError for a module whose chunks cannot follow each
    other."""
    calls = [(at, node) for at, node in enumerate(graph.graph.nodes) if is_recurrent(graph, node)]
    return tuple(layer for at, node in calls for layer in of_call(graph, at, node))


def is_recurrent(graph: fx.GraphModule, node: fx.Node) -> bool:
    return node.op == "call_module" and isinstance(graph.get_submodule(str(node.target)), nn.RNNBase)


def of_call(graph: fx.GraphModule, at: int, node: fx.Node) -> list[Layer]:
    """at: the node's place in the graph. Layers are ops that draw, numbered by it, beyond the numbers of all nodes."""
    path = str(node.target)
    module: Any = graph.get_submodule(path)
    kind = type(module).__name__
    if module.bidirectional:
        raise ScheduleError(
            f"{path} is a bidirectional {kind}, whose second direction begins at the end of time, where the first "
            f"ends: chunks would wait for each other; use bidirectional=False, or {MEND}"
        )
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        raise ScheduleError(
            f"{path} ({kind}) has hooks, which would see chunks of the call; remove them, set weights by "
            f"torch.nn.utils.parametrize, or {MEND}"
        )
    count = len(graph.graph.nodes)
    return [Layer(node.name, number, path, at + number * count) for number in range(module.num_layers)]
