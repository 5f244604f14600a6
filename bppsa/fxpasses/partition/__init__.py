"""Cut a model into stages of equal cost, for a schedule to run.

`tracing` makes a graph of the model's forward, once in training and once in evaluation, with what each node does
(`effects`, `costs`), and `modes` makes one graph of the two. `order` says what may be cut where, `balance` where it is
cut, and `building` makes a module of each stage. `by_hand` takes modules for stages. What cannot be cut is told by
`refusals` and `unfit`.

Belongs here: what a stage is, and what goes from stage to stage. Does not belong here: who runs a stage and when
(`bppsa.schedule`), and how (`bppsa.runtime.worker`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.arguments import Arguments, arguments_of
from bppsa.fxpasses.partition.balance import balanced
from bppsa.fxpasses.partition.building import build
from bppsa.fxpasses.partition.by_hand import by_hand
from bppsa.fxpasses.partition.effects import facts
from bppsa.fxpasses.partition.graph import Graph
from bppsa.fxpasses.partition.kept import kept
from bppsa.fxpasses.partition.modes import in_both_modes
from bppsa.fxpasses.partition.order import Order, ordered
from bppsa.fxpasses.partition.tracing import trace
from bppsa.fxpasses.partition.unfit import check_fit, check_traceable
from bppsa.fxpasses.partition.verify import called, check_same
from bppsa.stages import Stages

__all__ = ["partition"]
HIDDEN = (
    "its graph gives something else than the model, so the forward does something that calls of PyTorch's functions do "
    "not show, such as counting its calls or looking into tensors by numpy; take that out, or cut the model by hand, "
    "with stages=[module, ...]"
)


def partition(
    model: nn.Module,
    example_inputs: Any,
    stages: int | Sequence[nn.Module] = 8,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
) -> Stages:
    """Cut `model` into stages of about equal cost; their modules hold the model's own parameters and buffers.

    example_inputs: the positional arguments of a call, as a tuple, or the only one; example_kwargs: those by keyword.
    The model runs on them, and is left as it was. Later calls may have other batch sizes.
    stages: how many, or the modules of the model that are its stages, in order: the first takes the arguments, each
    other what the one before it returns (the elements of a tuple as arguments), and the last returns the result.

    The cost of an op is its flops, and the bytes that it reads and writes as flops. The largest stage is within 5 % of
    the least possible, the others share what it leaves evenly; of all such cuts this sends the fewest bytes.
    Raises PartitionError where the model cannot be traced, or cut into so many stages.
    """
    check_fit(model)
    if not isinstance(stages, int):
        return by_hand(model, stages, example_inputs, example_kwargs or {})
    check_traceable(model)
    arguments = arguments_of(model, example_inputs, example_kwargs or {})
    traced = trace_in_both_modes(model, arguments)
    order = ordered(traced.graph)
    if not 1 <= stages <= len(order.blocks):
        raise too_many(model, order, stages)
    costs = [sum(facts(node).cost for node in block) for block in order.blocks]
    return build(model, traced, order, balanced(costs, order.crossing(), stages), arguments)


def trace_in_both_modes(model: nn.Module, arguments: Arguments) -> Graph:
    """The model's graph, which was seen to give what the model gives."""
    traced = trace_in_mode(model, arguments)
    training = model.training
    with kept(model):
        model.train(not training)
        try:
            other: Graph | PartitionError = trace_in_mode(model, arguments)
        except PartitionError as error:
            other = error
    return in_both_modes(traced, other, training)


def trace_in_mode(model: nn.Module, arguments: Arguments) -> Graph:
    """The same for its present mode alone."""
    with kept(model):
        traced = trace(model, arguments)
    with kept(model):
        check_same(model, traced.example(), called(model, arguments), HIDDEN)
    return traced


def too_many(model: nn.Module, order: Order, stages: int) -> PartitionError:
    """Why there cannot be so many stages."""
    most, largest = len(order.blocks), max(order.blocks, key=len, default=())
    places = [place for node in largest if (place := node.meta.get("place"))]
    why = f"; {len(largest)} ops stay together for what is changed in place, as at {places[-1]}" if places else ""
    return PartitionError(f"{type(model).__name__} cannot be cut into {stages} stages; there can be 1 to {most}{why}")
