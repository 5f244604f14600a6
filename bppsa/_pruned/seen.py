"""What a call of a pruned module has found in its modules, so that the next only asks whether anything has changed.

Whoever changes a module (its flags, sizes, hooks, parameters, buffers, parts) puts another object into one of its
tables; who changes a mask in place raises its version. Comparing all objects by identity takes a few passes in C, a
fraction of finding out again what follows from them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from operator import is_, itemgetter
from typing import Any

from torch import Tensor, nn

from bppsa._pruned.masks import LAYERS, marks, weight_of
from bppsa._pruned.tracing import containers, contents
from bppsa.errors import Unsupported

TABLES = (
    *("_parameters", "_buffers", "_modules"),
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
)
OURS = ("report", "_bppsa_memo")  # attributes that every call changes


class Seen:
    """Of `root`, which it does not hold on to, and of all modules in it."""

    def __init__(self, root: nn.Module) -> None:
        modules = tuple(root.modules())
        self._parts = modules[1:]
        self._tables = [getattr(module, name) for module in modules for name in TABLES]
        self._readable = all(isinstance(table, dict) for table in self._tables)
        if not self._readable:  # those of torch.jit's modules are in C++: all is found out in each call
            return
        self._read = [reader(module) for module in modules]
        self._filled = [table for table in self._tables if table]
        self._masks = [mask for module in modules for mask in masks_of(module)]
        self._containers = [container for module in modules for container in containers(module)]
        self._parts_by_name = [module._modules for module in modules if module._modules]
        self._found = tuple(self._now(modules))
        self._values = self._values_now(modules)

    def holds(self, root: nn.Module) -> bool:
        """Whether all that has been found is there still, and nothing else."""
        if not self._readable:
            return False
        modules = root, *self._parts
        try:
            return all(map(is_, self._now(modules), self._found)) and self._values_now(modules) == self._values
        except KeyError:  # an attribute has been deleted
            return False

    def _now(self, modules: tuple[nn.Module, ...]) -> chain[Any]:
        """All objects in the modules' tables; as many as before where `_values_now` are the same."""
        attributes = [read(module.__dict__) for read, module in zip(self._read, modules, strict=True)]
        return chain(map(type, modules), chain.from_iterable(attributes), *map(dict.values, self._filled))

    def _values_now(self, modules: tuple[nn.Module, ...]) -> list[Any]:
        """Sizes of the tables, marks of the masks, what is in containers that users have put there, and names of parts,
        by which a forward may ask for them."""
        sizes, names = chain(map(len, map(vars, modules)), map(len, self._tables)), chain(*self._parts_by_name)
        return [*sizes, *marks(self._masks), *map(contents, self._containers), *names]


def reader(module: nn.Module) -> Callable[[dict[str, Any]], Any]:
    """Gives the attributes that matter, of which a table of attributes has several."""
    products = {name.removesuffix("_orig") for name in module._parameters if name.endswith("_orig")}
    passing = products.union(OURS)  # torch.nn.utils.prune puts another product there in each call of its own
    if passing.isdisjoint(module.__dict__):
        return dict.values
    return itemgetter(*(name for name in module.__dict__ if name not in passing))


def masks_of(module: nn.Module) -> tuple[Tensor, ...]:
    try:
        return weight_of(module).masks if isinstance(module, LAYERS) else ()
    except Unsupported:  # no plan depends on it
        return ()
