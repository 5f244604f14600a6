"""What the ops below one node of a graph do: how much, whether they draw random numbers, and what they overwrite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from bppsa.common.graph import tensors_in
from bppsa.common.stages import draws, is_product
from bppsa.fxpasses.lines import place_here
from bppsa.fxpasses.partition.ops.costs import NORMS, cost_of, flops_of
from bppsa.fxpasses.theirs import theirs

aten = torch.ops.aten


@dataclass(frozen=True)
class Site:
    """Where something is changed in place: the user's line, "" where none did it, and the op."""

    place: str
    op: str

    def otherwise_at(self, place: str) -> Site:
        return self if self.place else Site(place, self.op)


@dataclass(frozen=True)
class Facts:
    """What one node does for the example."""

    flops: float = 0.0
    cost: float = 0.0  # in flops
    of_products: float = 0.0  # what of the cost is matrix products'
    bytes: int = 0  # of the tensors in its value
    draws: bool = False  # random numbers
    writes: frozenset[StorageWeakRef] = frozenset()  # in place, to storages that were there before
    holds: frozenset[StorageWeakRef] = frozenset()  # storages of the tensors in its value
    tensors: int = 0  # in its value
    view: bool = False  # of another tensor
    state: frozenset[StorageWeakRef] = frozenset()  # storages of what the module that it calls has
    sites: Mapping[StorageWeakRef, Site] = field(default_factory=dict)  # of `writes`


NO_FACTS = Facts()


def facts(node: fx.Node) -> Facts:
    return node.meta.get("facts", NO_FACTS)


class EffectWatch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.flops = self.cost = self.of_products = 0.0
        self.draws = False
        self.written: dict[StorageWeakRef, Site] = {}
        self.outside = place_here()  # who has the ops run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = theirs(func, *args, **kwargs)
        self.flops += flops_of(func, args, kwargs, out)
        cost = cost_of(func, args, kwargs, out)
        self.cost += cost
        self.of_products += cost if is_product(func) else 0.0
        self.draws |= draws(func, args, kwargs)
        for tensor in written(func, args, kwargs):
            self.written.setdefault(storage(tensor), self.site(func))
        return out

    def site(self, func: Any) -> Site:
        place = place_here()
        return Site("" if place == self.outside else place, func._overloadpacket.__name__)


# The schemas of NORMS do not say that in training they write to these arguments.
NORM_STATISTICS = ("running_mean", "running_var")


def written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    norm = func._overloadpacket in NORMS
    for position, argument in enumerate(func._schema.arguments):
        if argument.is_write or (norm and argument.name in NORM_STATISTICS):
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            yield from tensors_in(given)


def storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def facts_of(value: Any, watch: EffectWatch, before: Set[StorageWeakRef], state: frozenset[StorageWeakRef]) -> Facts:
    """before: the storages that earlier nodes hold. state: those of what the module that is called has."""
    tensors = tensors_in(value)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    holds = frozenset(storage(tensor) for tensor in tensors if tensor.layout is torch.strided)
    sites = {written: site for written, site in watch.written.items() if written in before or written in state}
    view = any(tensor._is_view() for tensor in tensors)
    return Facts(
        flops=watch.flops,
        cost=watch.cost,
        of_products=watch.of_products,
        bytes=size,
        draws=watch.draws,
        writes=frozenset(sites),
        holds=holds,
        tensors=len(tensors),
        view=view,
        state=state,
        sites=sites,
    )
