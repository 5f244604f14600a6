"""What a call of a pruned module has found in its modules, so that the next only asks whether anything has changed.

Whoever changes a module (its flags, sizes, hooks, parameters, buffers, parts) puts another object into one of its
tables, or into a container of its own; who changes a mask in place raises its version. Comparing all objects by
identity takes a few passes in C, a fraction of finding out again what follows from them. Between two calls the caches
have been filled with images, so what a pass costs is how many objects it looks at, and nothing is looked at twice.
"""

from __future__ import annotations

from itertools import chain, compress
from operator import is_
from typing import Any

from torch import Tensor, nn

from bppsa._pruned.masks import LAYERS, marks, weight_of
from bppsa._pruned.tracing import LARGEST, OF_ALL, changeable, containers
from bppsa.errors import Unsupported

TABLES = (
    *("_parameters", "_buffers", "_modules"),
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
)
IDLE = OF_ALL.difference(TABLES, ["training"])  # what nobody asks for in a forward without hooks
OURS = ("report", "_bppsa_memo", "_bppsa_made")  # attributes that every call changes


class Seen:
    """Of `root`, which it does not hold on to, and of all modules in it."""

    def __init__(self, root: nn.Module) -> None:
        modules = tuple(root.modules())
        tables = [getattr(module, name) for module in modules for name in TABLES]
        self._parts = modules[1:]
        self.masks = [mask for module in modules for mask in masks_of(module)]
        self._readable = all(isinstance(table, dict) for table in tables)
        if not self._readable:  # those of torch.jit's modules are in C++: all is found out in each call
            return
        held = [found for module in modules for container in containers(module) for found in changeable(container)]
        self._empty, self._filled = ([t for t in (*tables, *held) if bool(t) is filled] for filled in (False, True))
        looked_into = [container for container in held if len(container) <= LARGEST]
        self._named = [t for t in (*(module._modules for module in modules), *looked_into) if t]
        self._values = [dict.values(t) for t in (*tables, *looked_into) if t and isinstance(t, dict)]
        self._matters = [matters for module in modules for matters in which_matter(module)]
        self._sizes, self._found = self._sizes_now(modules), self._now(modules)

    def holds(self, root: nn.Module) -> bool:
        """Whether all that has been found is there still, and nothing else."""
        if not self._readable or any(self._empty):
            return False
        modules = root, *self._parts
        return self._sizes_now(modules) == self._sizes and all(map(is_, self._now(modules), self._found))

    def _sizes_now(self, modules: tuple[nn.Module, ...]) -> list[int]:
        """And marks of the masks."""
        return [*map(len, map(vars, modules)), *map(len, self._filled), *marks(self.masks)]

    def _now(self, modules: tuple[nn.Module, ...]) -> list[Any]:
        """All classes, attributes, objects in tables and containers, and names by which a forward may ask for them; as
        many as before where `_sizes_now` are the same."""
        own = [*map(vars, modules)]
        attributes = compress(chain.from_iterable(map(dict.values, own)), self._matters)
        names = chain(*own, *self._named)
        return [*map(type, modules), *attributes, *chain(*self._values), *names]


def which_matter(module: nn.Module) -> list[bool]:
    """Of its attributes."""
    products = {name.removesuffix("_orig") for name in module._parameters if name.endswith("_orig")}
    passing = IDLE.union(products, OURS)  # torch.nn.utils.prune puts another product there in each call of its own
    return [name not in passing for name in vars(module)]


def masks_of(module: nn.Module) -> tuple[Tensor, ...]:
    try:
        return weight_of(module).masks if isinstance(module, LAYERS) else ()
    except Unsupported:  # no plan depends on it
        return ()
