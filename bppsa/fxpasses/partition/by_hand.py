"""Modules of a model as its stages, in the order given."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from bppsa.common.graph import paths_in, tensors_in
from bppsa.common.stages import INPUT, RecomputedPart, Stage, Stages, StageValue, draws
from bppsa.errors import PartitionError
from bppsa.fxpasses.lines import place_here
from bppsa.fxpasses.partition.call.arguments import Arguments, arguments_of, leaf_of, shapes_of
from bppsa.fxpasses.partition.call.kept import kept, unchanging
from bppsa.fxpasses.partition.call.layers import layer_of
from bppsa.fxpasses.partition.call.refusals import WHAT_FORWARDS_RAISE, meaning
from bppsa.fxpasses.partition.call.results import are_same_results
from bppsa.fxpasses.partition.capture.lines import is_checkpoint, stack
from bppsa.fxpasses.partition.check.rows import by_rows
from bppsa.fxpasses.partition.check.sideways import check_sideways
from bppsa.fxpasses.partition.check.verify import called
from bppsa.fxpasses.partition.cut.modules import ROOT, first_names, names_of, stage_module
from bppsa.fxpasses.partition.losses.outputs import few_by_hand
from bppsa.fxpasses.partition.ops.changes import changed_by
from bppsa.fxpasses.partition.ops.costs import NORMS
from bppsa.fxpasses.partition.ops.effects import EffectWatch, Site, storage, written
from bppsa.fxpasses.theirs import is_ours, raise_if_ours, theirs


@dataclass(frozen=True)
class ModuleRun:
    """What a module returned for the example."""

    result: Any
    flops: float
    cost: float
    of_products: float
    draws: bool
    written: frozenset[int]  # inputs that the module changes in place
    written_at: Mapping[StorageWeakRef, Site]

    def parts(self) -> list[Any]:
        """What the next module takes."""
        return list(self.result) if type(self.result) is tuple else [self.result]


def by_hand(
    model: nn.Module, modules: Sequence[nn.Module], example_inputs: Any, example_kwargs: Mapping[str, Any]
) -> Stages:
    """The first module takes the arguments, each other what the one before it returns: a tuple is one argument for
    each of its elements. What the last returns is the result.

    Raises PartitionError where a module is not part of the model, or the model computes something else.
    """
    paths = paths_of(model, modules)
    arguments = arguments_of(modules[0], example_inputs, example_kwargs)
    with unchanging(model):
        runs = run_first(model, modules, arguments)
    check_model(model, runs[-1].result, example_inputs, example_kwargs)
    trained = run_training(model, modules, arguments)
    drawing = [True] * len(runs) if trained is None else [run.draws for run in trained]
    sites = [run.written_at for run in trained or runs]
    values = [
        StageValue(name, INPUT, (0,), bytes_in(a)) for name, a in zip(arguments.names, arguments.examples, strict=True)
    ]
    inputs = range(len(values))
    stages, first = [], first_names(model)
    for s, (path, run) in enumerate(zip(paths, runs, strict=True)):
        graph, call = calling(path, arguments if s == 0 else None, len(inputs), run.written)
        is_last = s == len(runs) - 1
        parts = [] if is_last else run.parts()
        outputs = range(len(values), len(values) + len(parts))
        values += [StageValue(f"{path}[{i}]", s, (s + 1,), bytes_in(part)) for i, part in enumerate(parts)]
        graph.output(results_of(graph, call, run.result, is_last))
        call.meta = {"draws": s} if drawing[s] else {}
        module = stage_module(model, graph, {}, ROOT)
        draws = ((call.name, s),) if drawing[s] else ()
        names = names_of(module, first)
        changes = tuple(changed_by(modules[s], sites[s], f"{path}."))
        calls = tuple(node.name for node in graph.nodes if node.target == "clone" or node is call)
        stages.append(
            Stage(
                module,
                tuple(inputs),
                tuple(outputs),
                names,
                ops=1,
                flops=run.flops,
                cost=run.cost,
                changes=changes,
                root=ROOT,
                draws=draws,
                recomputable=() if changes else (RecomputedPart(calls, run.cost, run.of_products),),
            )
        )
        inputs = outputs
    spec = tree_structure(runs[-1].result)
    assemble = lambda leaves: tree_unflatten(list(leaves), spec)  # noqa: E731
    found = Stages(tuple(stages), tuple(values), len(arguments.names), arguments.bind, assemble)
    rows, leaves = by_rows(model, found, arguments), arguments.leaves
    check_sideways(model, found, arguments, rows)
    few = few_by_hand(tree_leaves(runs[-1].result), leaves, rows)
    return replace(found, by_rows=rows, shapes=shapes_of(leaves), few=few)


def results_of(graph: fx.Graph, call: fx.Node, result: Any, is_last: bool) -> tuple[fx.Node, ...]:
    """What a stage gives of what its module has returned: what the next one takes, or the leaves of the result."""
    if is_last:
        return tuple(graph.call_function(leaf_of, (call, i)) for i in range(len(tree_leaves(result))))
    if type(result) is tuple:
        return tuple(graph.call_function(operator.getitem, (call, i)) for i in range(len(result)))
    return (call,)


def calling(path: str, arguments: Arguments | None, inputs: int, written: frozenset[int]) -> tuple[fx.Graph, fx.Node]:
    """A graph that calls a module. arguments: how the inputs are given to it; default: by position. written: inputs
    that it changes in place: it gets copies, because a stage's inputs are the stage's before as well."""
    graph = fx.Graph()
    received = [graph.placeholder(f"input_{i}") for i in range(inputs)]
    received = [graph.call_method("clone", (x,)) if i in written else x for i, x in enumerate(received)]
    args, kwargs = arguments.call(received) if arguments else (received, {})
    return graph, graph.call_module(path, tuple(args), kwargs)


TRAINING = 5  # the argument of norms that says whether they follow their batches


class CheckpointWatch(EffectWatch):
    """place: where an op in torch.utils.checkpoint does what no recomputation of PyTorch's does as a stage does it, and
    what that is; "" where there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.place = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        what = "draws random numbers" if draws(func, args, kwargs) else ""
        if func._overloadpacket in NORMS and args[TRAINING] and any(True for _ in written(func, args, kwargs)):
            what = "changes running statistics"
        if what and not self.place and any(map(is_checkpoint, stack())):
            self.place = f"{place_here()}: {what}"
        return super().__torch_dispatch__(func, types, args, kwargs)

    def check(self) -> None:
        if self.place:
            raise PartitionError(
                f"{self.place} within torch.utils.checkpoint, and in a stage that is cut by hand its recomputation "
                f"would do so again in another way; let the stages be found, with stages=2, or take recompute='full' "
                f"in the place of the checkpoint"
            )


def run_all(modules: Sequence[nn.Module], arguments: Arguments) -> list[ModuleRun]:
    args, kwargs = arguments.call(arguments.examples)
    given: Sequence[Any] = arguments.examples
    runs = []
    for module in modules:
        with torch.no_grad(), CheckpointWatch() as watch:
            result = theirs(module, *args, **kwargs)
        watch.check()
        changed = frozenset(i for i, x in enumerate(given) if isinstance(x, Tensor) and storage(x) in watch.written)
        runs.append(ModuleRun(result, watch.flops, watch.cost, watch.of_products, watch.draws, changed, watch.written))
        given = args = runs[-1].parts()
        kwargs = {}
    return runs


def run_first(model: nn.Module, modules: Sequence[nn.Module], arguments: Arguments) -> list[ModuleRun]:
    """Raises PartitionError where a module does not take what the one before it returns."""
    try:
        return run_all(modules, arguments)
    except WHAT_FORWARDS_RAISE as error:
        if is_ours(error) or isinstance(error, PartitionError):
            raise
        raise PartitionError(
            f"the stages do not run on the example, each on what the one before it returns: "
            f"{layer_of(model, error) or meaning(error)}"
        ) from error


def run_training(model: nn.Module, modules: Sequence[nn.Module], arguments: Arguments) -> list[ModuleRun] | None:
    """The modules run in training; None where the example cannot be used for that."""
    with kept(model):
        model.train()
        try:
            return run_all(modules, arguments)
        except WHAT_FORWARDS_RAISE as error:  # batch norm, over an example of one row
            raise_if_ours(error)
            return None


def check_model(model: nn.Module, found: Any, example_inputs: Any, example_kwargs: Mapping[str, Any]) -> None:
    """A container, such as nn.ModuleList, has nothing to compare with."""
    if type(model).forward is nn.Module.forward:
        return
    with kept(model):
        expected = called(model, arguments_of(model, example_inputs, example_kwargs))
    if not are_same_results(found, expected):
        raise PartitionError(f"{type(model).__name__}: the stages, run one after another, do not give what it gives")


def paths_of(model: nn.Module, modules: Sequence[nn.Module]) -> list[str]:
    paths = paths_in(model)
    if not modules:
        raise PartitionError("stages is empty; give at least one module")
    for module in modules:
        if not paths.get(id(module)):
            raise PartitionError(
                f"stages holds a {type(module).__name__} that is no submodule of {type(model).__name__}; give those "
                f"of the model, such as [model.encoder, model.decoder]"
            )
    return [paths[id(module)] for module in modules]


def bytes_in(value: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(value))
