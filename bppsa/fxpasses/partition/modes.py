"""One graph for training and evaluation, from a trace of each.

Calls that both traces make are made once; where their arguments differ, as in dropout(x, training=self.training), these
are chosen when the graph runs. Calls that one trace alone makes run in its mode alone. The mode is the `training` of
the module that makes the call.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten, tree_map_only

from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.decisions import as_decided, as_mode
from bppsa.fxpasses.partition.effects import Facts, facts
from bppsa.fxpasses.partition.graph import ByMode, Graph, Output

TRAINING = "training"  # the attribute of a module
Pair = tuple[fx.Node | None, fx.Node | None]


def in_both_modes(here: Graph, there: Graph | PartitionError, training: bool) -> Graph:
    """`here`, the trace in the present mode (training or not), made to serve the other mode too."""
    if isinstance(there, PartitionError):
        mode = Modes(here.graph).node("")
        with here.graph.inserting_after(mode):
            check = here.graph.call_function(as_mode, (mode, training, str(there)))
        check.meta.update(facts=Facts(), decidable=True)
        return here
    return Merge(here, there, training).merged()


class Modes:
    """Nodes that tell whether a module is in training."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.found: dict[str, fx.Node] = {}

    def node(self, path: str) -> fx.Node:
        if path not in self.found:
            first = next(node for node in self.graph.nodes if node.op != "placeholder")
            with self.graph.inserting_before(first):
                self.found[path] = self.graph.get_attr(f"{path}.{TRAINING}" if path else TRAINING)
            self.found[path].meta.update(facts=Facts(), decidable=True)
        return self.found[path]


class Merge:
    """Works on the graph of `here`. twins: of each node of `there`, what is in its place. alone: what is made in one
    mode only, with the path of the module that decides."""

    def __init__(self, here: Graph, there: Graph, training: bool) -> None:
        self.here, self.there, self.training = here, there, training
        self.graph, self.modes = here.graph, Modes(here.graph)
        self.names = shared_names(here.constants, there.constants)
        self.twins: dict[fx.Node, fx.Node] = {}
        self.alone: dict[fx.Node, str] = {}
        self.chosen: dict[str, fx.Node] = {}

    def merged(self) -> Graph:
        after = next(iter(self.graph.nodes))
        for own, other in list(self.pairs()):
            if own is not None and other is not None:
                self.twins[other] = after = own
                self.choose_arguments(own, *self.mapped(other))
                own.meta["facts"] = either(facts(own), facts(other))
            elif own is not None:
                with self.graph.inserting_before(own):
                    after = self.in_mode(own, own.args, own.kwargs, self.training)
                own.replace_all_uses_with(after)
                self.graph.erase_node(own)
            elif other is not None:
                with self.graph.inserting_after(after):
                    start = self.graph.call_function(by_mode)  # marks the place: several nodes may be made
                with self.graph.inserting_before(start):
                    self.twins[other] = self.in_mode(other, *self.mapped(other), not self.training)
                after = self.twins[other]
                self.graph.erase_node(start)
        constants = self.here.constants | {self.names[name]: value for name, value in self.there.constants.items()}
        return replace(self.with_outputs(), constants=constants)

    def pairs(self) -> Iterator[Pair]:
        """The nodes of both in one order, those that make the same call side by side."""
        own, other = ([node for node in g.nodes if node.op != "output"] for g in (self.here.graph, self.there.graph))
        a, b = ([self.call_of(node, names) for node in nodes] for nodes, names in ((own, {}), (other, self.names)))
        if a == b:
            yield from zip(own, other, strict=True)
            return
        for kind, i, j, k, l in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():  # noqa: E741
            if kind == "equal":
                yield from zip(own[i:j], other[k:l], strict=True)
            else:
                yield from ((node, None) for node in own[i:j])
                yield from ((None, node) for node in other[k:l])

    def call_of(self, node: fx.Node, names: dict[str, str]) -> Any:
        target = names.get(node.target, node.target) if node.op == "get_attr" else node.target
        return node.op, target, len(node.args), tuple(sorted(node.kwargs)), caller(node)

    def mapped(self, other: fx.Node) -> tuple[Any, Any]:
        return fx.node.map_arg((other.args, other.kwargs), self.twins.__getitem__)

    def in_mode(self, node: fx.Node, args: Any, kwargs: Any, training: bool) -> fx.Node:
        """The call, made in one mode only."""
        path = caller(node)
        if node.op == "get_attr":
            made = self.graph.get_attr(self.names.get(node.target, node.target))
        elif node.target is as_decided:
            value, how, *rest = args
            pair = (how, None) if training else (None, how)
            made = self.graph.call_function(as_decided, (value, self.choice(path, *pair), *rest))
        else:
            module = (self.graph.get_attr(node.target),) if node.op == "call_module" else ()
            for attribute in module:
                attribute.meta.update(facts=Facts(), decidable=False)
            call = When(training, node.op, node.target)
            made = self.graph.call_function(call, (self.modes.node(path), *module, *args), kwargs)
            self.alone[made] = path
        made.meta = dict(node.meta)
        if training != self.training:
            made.meta["facts"] = replace(facts(node), flops=0.0, cost=0.0)
        return made

    def choose_arguments(self, node: fx.Node, args: Any, kwargs: Any) -> None:
        """Where those of the other mode differ."""
        if differ(args, node.args) or differ(kwargs, node.kwargs):
            with self.graph.inserting_before(node):
                node.args = self.chosen_of(caller(node), node.args, args)
                node.kwargs = self.chosen_of(caller(node), node.kwargs, kwargs)

    def chosen_of(self, path: str, own: Any, other: Any) -> Any:
        """Of a mode's and the other's arguments: a choice in the place of each that differs."""
        if isinstance(own, (tuple, list)) and type(own) is type(other) and len(own) == len(other):
            return type(own)(self.chosen_of(path, a, b) for a, b in zip(own, other, strict=True))
        if isinstance(own, dict) and isinstance(other, dict) and own.keys() == other.keys():
            return {key: self.chosen_of(path, value, other[key]) for key, value in own.items()}
        if not differ(own, other):
            return own
        return self.choice(path, *((own, other) if self.training else (other, own)))

    def choice(self, path: str, in_training: Any, in_evaluation: Any) -> fx.Node:
        """path: of the module that decides where neither of the two is made in one mode only."""
        sources: list[fx.Node] = []
        fx.node.map_arg((in_training, in_evaluation), lambda node: sources.append(node))
        path = next((self.alone[node] for node in sources if node in self.alone), path)
        key = repr((path, in_training, in_evaluation))
        if key not in self.chosen or not sources:
            made = self.graph.call_function(by_mode, (self.modes.node(path), in_training, in_evaluation))
            known = functools.reduce(either, map(facts, sources), Facts())
            made.meta.update(
                facts=replace(known, flops=0.0, cost=0.0, draws=False, writes=frozenset()),
                container=any(source.meta.get("container", False) for source in sources),
                decidable=all(source.meta.get("decidable", False) for source in sources),
            )
            self.chosen[key] = made
            if sources:
                self.alone[made] = path
        return self.chosen[key]

    def with_outputs(self) -> Graph:
        """With what the model returns in each mode."""
        own = self.graph.output_node()
        outputs = list(own.args[0])
        others = [self.twins[node] for node in self.there.graph.output_node().args[0]]
        examples = self.here.examples
        result = self.here.result
        with self.graph.inserting_before(own):
            if alike(result, self.there.result):
                outputs = self.chosen_of("", outputs, others)
            else:
                told = self.graph.call_function(as_structure, (self.modes.node(""),))
                told.meta.update(facts=Facts(), decidable=True)
                shifted = tree_map_only(Output, lambda o: Output(o.number + len(outputs)), self.there.result)
                result = ByMode(result, shifted) if self.training else ByMode(shifted, result)
                outputs += [*others, told]
                examples = (*examples, *self.there.examples, as_structure(self.training))
        own.args = (tuple(outputs),)
        return replace(self.here, result=result, examples=examples)


@dataclass(frozen=True)
class When:
    """A call that is made in one mode only, and gives None in the other. Its module or method goes by `op`, as in
    torch.fx; a module is given as the first argument."""

    training: bool
    op: str
    target: Any

    @property
    def __name__(self) -> str:
        return self.target if self.op != "call_function" else str(getattr(self.target, "__name__", "call"))

    def __call__(self, mode: bool, *args: Any, **kwargs: Any) -> Any:
        if mode != self.training:
            return None
        if self.op == "call_method":
            return getattr(args[0], self.target)(*args[1:], **kwargs)
        return args[0](*args[1:], **kwargs) if self.op == "call_module" else self.target(*args, **kwargs)


def by_mode(training: bool, in_training: Any, in_evaluation: Any) -> Any:
    return in_training if training else in_evaluation


def as_structure(training: bool) -> tuple[Any, ...]:
    """True in training. The flag is in the structure, since something else may stand in the places of leaves."""
    return ((),) if training else ()


def caller(node: fx.Node) -> str:
    """The path of the module whose forward made the node."""
    stack = node.meta.get("nn_module_stack") or {"": ("", None)}
    return str(next(reversed(stack.values()))[0])  # the key tells calls of one module apart


def shared_names(own: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, str]:
    """Of the other trace's constants: the name of an equal one, or a new name."""
    names = {}
    for name, value in other.items():
        names[name] = next((n for n, v in own.items() if equal(v, value)), f"{name}_other")
    return names


def equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


def either(a: Facts, b: Facts) -> Facts:
    return replace(
        a,
        bytes=max(a.bytes, b.bytes),
        draws=a.draws or b.draws,
        writes=a.writes | b.writes,
        holds=a.holds | b.holds,
        tensors=max(a.tensors, b.tensors),
    )


def differ(a: Any, b: Any) -> bool:
    return repr(a) != repr(b)


def alike(a: Any, b: Any) -> bool:
    (leaves, spec), (others, other_spec) = tree_flatten(a), tree_flatten(b)
    return spec == other_spec and not any(differ(x, y) for x, y in zip(leaves, others, strict=True))
