"""What a loss function counts by, as its graph tells it: it is read once for targets and sizes that are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_structure, tree_unflatten

from bppsa.common.graph import tensors_in
from bppsa.common.stages import LossMeans, Stages
from bppsa.distributed.batch.batches import is_batched, rows_in
from bppsa.distributed.losses.metrics import split_loss
from bppsa.distributed.losses.trying import copied
from bppsa.errors import ArgumentError, PartitionError
from bppsa.fxpasses.partition.call.arguments import arguments_of
from bppsa.fxpasses.partition.call.kept import kept
from bppsa.fxpasses.partition.call.refusals import WHAT_FORWARDS_RAISE, StateChanged
from bppsa.fxpasses.partition.capture.since import since
from bppsa.fxpasses.partition.capture.whole import Custom
from bppsa.fxpasses.partition.losses.outputs import FEW, resized
from bppsa.fxpasses.partition.ops.regions import copied_in_regions
from bppsa.fxpasses.theirs import raise_if_ours, theirs

if TYPE_CHECKING:
    from bppsa.fxpasses.partition.capture.graph import CapturedGraph  # which imports sympy, as the next does
    from bppsa.fxpasses.partition.capture.sizes import Sizes

PYTORCHS = ("aten", "prims", "higher_order")  # whose ops a table knows, or nobody else writes
MOST = 8  # graphs that are kept, and times that a loss is traced in vain


@dataclass(frozen=True)
class LossByTerms:
    """The loss of (output, target) as its graph gives it. has_metrics: whether loss_fn gives something beside it."""

    run: nn.Module
    assemble: Callable[[Any], Any]
    has_metrics: bool

    def __call__(self, output: Any, target: Any) -> Any:
        return loss_in(self.assemble(self.run(output, target)))


@dataclass(frozen=True)
class TracedLoss:
    """loss_fn as it was when it was traced.

    means: None where its graph cannot be read, and with count=None where it was read, and is neither a sum nor a mean.
    target, structure: of each tensor that the graph takes its dtype and number of dimensions, all else as it is, and
    how they are put together. sizes: the check of an output and a target. apart: its graph, in which the terms of the
    loss have factors; None where they count alike.
    """

    means: LossMeans | None = None
    target: tuple[Any, ...] = ()
    structure: TreeSpec | None = None
    changed: Callable[[], str] = lambda: ""
    sizes: Sizes | None = None
    apart: LossByTerms | None = None
    seen: bool = True  # whether the graph tells what all of its calls do

    def holds(self, output: Any, target: Any) -> bool:
        """Whether the graph was made for such an output and such a target."""
        if self.sizes is None or tree_structure(target) != self.structure or likes(target) != self.target:
            return False
        try:
            self.sizes(output, target)
        except PartitionError:
            return False
        return True


def likes(target: Any) -> tuple[Any, ...]:
    """What a graph of the loss is made for, besides sizes, by the target's leaves."""
    return tuple((x.dtype, x.dim()) if isinstance(x, Tensor) else x for x in tree_leaves(target))


class LossOf(nn.Module):
    """A loss function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, output: Any, target: Any) -> Any:
        return self.function(output, target)


class Traces:
    """The graphs of one loss function that were read so far, the newest last."""

    def __init__(self, function: Callable[..., Any], stages: Stages) -> None:
        self.function, self.stages = function, stages
        self.kept: list[TracedLoss] = []
        self.failed: list[Any] = []  # signatures of what could not be traced
        self.last: tuple[Any, TracedLoss] = None, TracedLoss()  # what was found, and for which tensors

    def of(self, target: Any, arguments: Sequence[Any], rows: int) -> TracedLoss:
        """The graph for a batch's target and the model's arguments. rows: of the whole batch, on all ranks.

        Raises ArgumentError where loss_fn would do something else for so many.
        """
        if self.stages.few is None:
            return TracedLoss()
        self.kept = [one for one in self.kept if not one.changed()]
        known, (before, last) = tensor_kinds(rows, target, *arguments), self.last
        if known is None or known != before or not any(one is last for one in self.kept):
            self.last = known, self.found(target, arguments, rows)
        return self.last[1]

    def found(self, target: Any, arguments: Sequence[Any], rows: int) -> TracedLoss:
        assert self.stages.few is not None
        output = self.stages.assemble([stand_in(x, target) for x in self.stages.few(tree_leaves(list(arguments)))])
        short = of_few_rows(target, rows_in(arguments))
        found = next((one for one in reversed(self.kept) if one.holds(output, short)), None)
        found = self.traced(output, short) if found is None else found
        check_whole(found, output, short, rows)
        return found

    def traced(self, output: Any, target: Any) -> TracedLoss:
        signature = signature_of(output, target)
        if signature in self.failed or len(self.failed) >= MOST:
            return TracedLoss()
        found = traced(self.function, output, target)
        if found is None:
            self.failed.append(signature)
            return TracedLoss()
        self.kept = [*self.kept, found][-MOST:]
        return found


def signature_of(*values: Any) -> Any:
    leaves, spec = tree_flatten(list(values))
    return spec, [(x.dtype, x.shape) if isinstance(x, Tensor) else type(x) for x in leaves]


def tensor_kinds(rows: int, *values: Any) -> Any:
    """What a graph is chosen by, where all leaves are tensors; None where others are, which count by their values."""
    leaves, spec = tree_flatten(values)
    if not all(isinstance(x, Tensor) for x in leaves):
        return None
    return rows, spec, [(x.dtype, x.shape) for x in leaves]


def check_whole(found: TracedLoss, output: Any, target: Any, rows: int) -> None:
    """Raises ArgumentError where the loss decides by the number of rows, and otherwise for the batch's than for a few:
    micro-batches may be alike to it, and the whole batch not. output, target: of a few rows."""
    if found.sizes is None or found.means is None or found.means.count is None:
        return
    try:
        found.sizes(*found.sizes.with_rows(rows, output, target))
    except PartitionError as error:
        raise ArgumentError(
            f"loss_fn does something else for the {rows} rows of the whole batch than for a few: {error}; or take "
            f"microbatches=1"
        ) from error


def of_few_rows(target: Any, rows: int) -> Any:
    leaves, spec = tree_flatten(target)
    short = [resized(x, [FEW, *x.shape[1:]]) if is_batched(x, rows) else x for x in leaves]
    return tree_unflatten(short, spec)


def stand_in(x: Any, target: Any) -> Any:
    """An output where the target is, with numbers of its own where it has none; the same on every rank."""
    if not isinstance(x, Tensor) or not x.is_meta:
        return x
    device = next((leaf.device for leaf in tensors_in(target)), torch.device("cpu"))
    if not (x.is_floating_point() or x.is_complex()):
        return torch.zeros_like(x, device=device)
    return torch.rand(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0)).to(device)


def once_a_microbatch(what: str) -> str:
    """What to say of a loss that changes something of Python's, named as of the module in which it is traced."""
    its = "itself" if what == "function" else what.replace("the model", "it")
    return (
        f"loss_fn changes {its} once a micro-batch, and not once a step; change it after `optimizer.step()`, or return "
        f"what is to be seen beside the loss"
    )


def traced(function: Callable[..., Any], output: Any, target: Any) -> TracedLoss | None:
    """The graph of a function of (output, target), which have a few rows. None where it cannot be traced."""
    from bppsa.fxpasses.partition.capture.captured import captured  # imports sympy, as the next does
    from bppsa.fxpasses.partition.losses.loss_graph import LossGraph
    from bppsa.fxpasses.partition.losses.weights import means_of

    module = function if isinstance(function, nn.Module) else LossOf(function)
    try:
        arguments = arguments_of(module, (output, target), {})
        graph = theirs(captured, module, arguments)
        by_rows = [is_batched(x, FEW) for x in arguments.leaves]
        of = LossGraph(module, graph, arguments.examples, by_rows, loss_in, made=1)
        apart = loss_by_terms(module, graph) if of.separate_terms() else None
        means = means_of(of)
    except StateChanged as error:
        return TracedLoss(LossMeans(place=error.place, why=once_a_microbatch(error.what)))
    except (PartitionError, ArgumentError):
        return None
    except WHAT_FORWARDS_RAISE as error:  # an output of this example may not go with this target
        raise_if_ours(error)
        return None
    if means is None or any(
        yes and shape is not None and isinstance(shape[0], int)  # Python took the number of rows as it was
        for shape, yes in zip(graph.sizes.shapes, by_rows, strict=True)
    ):
        return None
    seen = not any(map(is_unseen, graph.graph.nodes))
    if means.count is None and any(isinstance(node.target, Custom) for node in graph.graph.nodes):
        return None  # what a Function gives is found out by trying
    checked = since(module, graph.looked_up)
    if apart is not None and not (seen and gives_the_same(apart, module, (output, target))):
        means, apart = replace(means, terms=()), None
    return TracedLoss(means, likes(target), tree_structure(target), checked, graph.sizes, apart, seen)


def loss_in(value: Any) -> Any:
    return split_loss(value)[0]


def loss_by_terms(module: nn.Module, graph: CapturedGraph) -> LossByTerms:
    from bppsa.fxpasses.partition.cut.modules import stage_module

    nodes, new = list(graph.graph.nodes), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}

    def copy(node: fx.Node) -> None:
        copies[node] = new.node_copy(node, copies.__getitem__)

    copied_in_regions(new, nodes, copy)
    run = stage_module(module, new, graph.constants)
    return LossByTerms(run, graph.assemble, split_loss(graph.assemble(graph.examples))[1] is not None)


def gives_the_same(apart: LossByTerms, function: nn.Module, given: tuple[Any, Any]) -> bool:
    """Whether the graph gives the loss that the function gives, which are left as they were."""
    with kept(function), torch.no_grad():
        found, expected = theirs(apart, *tree_map(copied, given)), loss_in(theirs(function, *tree_map(copied, given)))
    return bool(torch.isclose(found, expected, rtol=torch.finfo(expected.dtype).eps ** 0.5, equal_nan=True))


def is_unseen(node: fx.Node) -> bool:
    """Whether a call is of the user's own op or Function, of which made-up numbers tell what it does, and no table."""
    return isinstance(node.target, Custom) or getattr(node.target, "namespace", "aten") not in PYTORCHS
