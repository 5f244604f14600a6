"""What a forward changes of a model's Parameters and buffers, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.batchnorm import _NormBase

from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.ops.effects import Site, facts, storage

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Change(str):
    """The model's name of what is changed. site: where; parameter: whether it is a Parameter."""

    site: Site
    parameter: bool

    def __new__(cls, name: str, site: Site, parameter: bool) -> Change:
        change = super().__new__(cls, name)
        change.site, change.parameter = site, parameter
        return change

    def __reduce__(self) -> tuple[Any, ...]:
        return Change, (str(self), self.site, self.parameter)


def state_in(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers that a call of the module reads and may change, its hooks and parametrizations too. The
    statistics of norms are the business of whoever runs the stages."""
    norms = [norm for norm in module.modules() if isinstance(norm, _NormBase)]
    of_norms = {id(norm._buffers.get(name)) for norm in norms for name in STATISTICS}
    held = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: x for name, x in held if id(x) not in of_norms and x.layout is torch.strided}


def check_statistics(graph: fx.Graph, model: nn.Module) -> None:
    """Raises PartitionError where the forward reads running statistics that a norm of the model follows in training:
    while a step runs they stay as they were."""
    followed = {
        storage(tensor): f"{path}.{name}".lstrip(".")
        for path, norm in model.named_modules()
        for name in STATISTICS
        if isinstance(norm, _NormBase) and norm.training and (tensor := norm._buffers.get(name)) is not None
    }
    for node in graph.find_nodes(op="get_attr"):
        for name in map(followed.__getitem__, facts(node).holds & followed.keys()):
            place = next((user.meta["place"] for user in node.users if user.meta.get("place")), "")
            raise PartitionError(
                f"{place or type(model).__name__}: the forward reads {name}, which its norm changes in training, and "
                f"micro-batches would not read what it was changed to; keep a copy in a buffer of your own, changed "
                f"after optimizer.step(), or put the norm into eval()"
            )


def changed_by(module: nn.Module, sites: Mapping[StorageWeakRef, Site], prefix: str) -> Iterator[Change]:
    """sites: of what a run of the module has written to."""
    for name, tensor in state_in(module).items():
        if (site := sites.get(storage(tensor))) is not None:
            yield Change(prefix + name, site, isinstance(tensor, nn.Parameter))
