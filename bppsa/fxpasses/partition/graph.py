"""What tracing gives: a graph from arguments to outputs, and how these make up what the model returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

from torch import Tensor, fx
from torch.fx.proxy import TraceError
from torch.utils._pytree import TreeSpec, tree_map, tree_unflatten

PLAIN = (Tensor, bool, int, float, complex, str, type(None))


@dataclass(frozen=True)
class Output:
    number: int


@dataclass(frozen=True)
class ByMode:
    """Of a model that returns one thing in training and another in evaluation."""

    in_training: Any
    in_evaluation: Any


@dataclass(frozen=True)
class Graph:
    """graph: a placeholder for each argument; the output is a tuple of nodes. Nodes have Facts in meta["facts"].

    result: what the model returns, with an Output in the place of each output; where it is a ByMode, the last output is
    true in training.
    """

    graph: fx.Graph
    constants: dict[str, Tensor]  # of which get_attr nodes read
    result: Any
    examples: tuple[Any, ...]  # of the outputs

    def assemble(self, outputs: Sequence[Any]) -> Any:
        result = self.result
        if isinstance(result, ByMode):
            result = result.in_training if outputs[-1] else result.in_evaluation
        return tree_map(lambda leaf: outputs[leaf.number] if isinstance(leaf, Output) else leaf, result)

    def example(self) -> Any:
        """What it returns for the example."""
        return self.assemble(self.examples)


def numbered(leaves: list[Any], spec: TreeSpec) -> tuple[tuple[fx.Proxy, ...], Any]:
    """The outputs, each once, and the structure of the result with their numbers in it.

    Raises TraceError where the result holds an object in which nobody would find tensors.
    """
    numbers: dict[int, int] = {}
    outputs: list[fx.Proxy] = []
    result = list(leaves)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, fx.Proxy):
            if id(leaf.node) not in numbers:
                numbers[id(leaf.node)] = len(outputs)
                outputs.append(leaf)
            result[i] = Output(numbers[id(leaf.node)])
        elif not isinstance(leaf, PLAIN):
            name = type(leaf).__name__
            known = "export.register_dataclass" if is_dataclass(leaf) else "utils._pytree.register_pytree_node"
            raise TraceError(
                f"the model returns a {name}, in which no tensors are found; return a tuple or a dict, or say what is "
                f"in it by torch.{known}({name}{'' if is_dataclass(leaf) else ', ...'})"
            )
    return tuple(outputs), tree_unflatten(result, spec)
