"""Attributes of modules that a forward sets anew in each call, and reads only afterwards, as `self.aux = ...` that the
model adds up: values of one call. Its graph hands them on, and nothing is left on the modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from bppsa.decisions import RECORD, Report, under
from bppsa.errors import PartitionError
from bppsa.fxpasses.network.models import TABLES, ContainerCopies, caches, is_namespace, restore
from bppsa.fxpasses.partition.call.kept import kept
from bppsa.fxpasses.partition.call.refusals import WHAT_FORWARDS_RAISE
from bppsa.fxpasses.partition.call.results import are_same_results
from bppsa.fxpasses.theirs import raise_if_ours

Attribute = tuple[str, str]  # the path of a module, and a name


class NotKept(Tensor):
    """Stands where an attribute was that a forward sets in each call: whoever reads it is told.

    It is a tensor, so that code that asks for one does not pass it over.
    """

    path: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        path = next((x.path for x in tree_leaves((args, kwargs)) if isinstance(x, cls)), "an attribute")
        raise PartitionError(
            f"{path} is set by the forward, and stages hand on its value without keeping it; let the model return what "
            f"the loss, metrics or the next call read of it"
        )

    def __repr__(self) -> str:  # type: ignore[override]
        return f"NotKept({self.path})"

    def __deepcopy__(self, memo: Any) -> NotKept:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return not_kept, (self.path,)


def not_kept(path: str) -> NotKept:
    with torch._C.DisableTorchFunctionSubclass():
        found = torch.empty(0).as_subclass(NotKept)
    found.path = path
    return found


def mark(model: nn.Module, attributes: Iterable[Attribute]) -> None:
    """Puts a `NotKept` in the place of each."""
    for path, name in attributes:
        module = model.get_submodule(path)
        if not isinstance(getattr(module, name, None), NotKept):
            setattr(module, name, not_kept(under(path, name)))


@contextmanager
def marked(model: nn.Module, attributes: Iterable[Attribute]) -> Iterator[None]:
    """Within the block they are marked; after it the model is as it was."""
    with kept(model):
        mark(model, attributes)
        yield


def transient(model: nn.Module, before: ContainerCopies, run: Callable[[], Any]) -> tuple[Attribute, ...]:
    """The attributes that a run of the forward has set, and that it reads only afterwards. before: as `state_of` gave
    it before that run."""
    anew = set_anew(before)
    if not anew:
        return ()
    with kept(model):
        restore(before)
        found = among(model, anew, run)
        return found if found == anew or are_transient(model, found, run) else ()


def among(model: nn.Module, attributes: tuple[Attribute, ...], run: Callable[[], Any]) -> tuple[Attribute, ...]:
    """Those that are transient, by halves: one that is not, among many, is found in a few runs."""
    if are_transient(model, attributes, run):
        return attributes
    if len(attributes) == 1:
        return ()
    middle = len(attributes) // 2
    return among(model, attributes[:middle], run) + among(model, attributes[middle:], run)


def put_back(model: nn.Module, before: ContainerCopies, attributes: Iterable[Attribute]) -> None:
    """Has these attributes be what they were."""
    then = {path: copy for path, container, copy in before if is_namespace(container)}
    for path, name in attributes:
        space = vars(model.get_submodule(path))
        if name in then[path]:
            space[name] = then[path][name]
        else:
            del space[name]


class OpsSeen(TorchDispatchMode):
    """The ops that run, each with what it is given besides tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        others = [leaf for leaf in tree_leaves((args, kwargs)) if not isinstance(leaf, Tensor)]
        self.seen.append(f"{func} {others}")
        return func(*args, **kwargs)


def set_anew(before: ContainerCopies) -> tuple[Attribute, ...]:
    """Attributes that are others than before, but for modules, Parameters and buffers."""
    found = []
    for path, container, then in before:
        if is_namespace(container):
            others = {*TABLES, RECORD, "training", *caches(container)}.union(*(container[table] for table in TABLES))
            found += [
                (path, name)
                for name, value in container.items()
                if name not in others and not isinstance(value, Report) and value is not then.get(name, NotKept)
            ]
    return tuple(found)


def are_transient(model: nn.Module, attributes: Sequence[Attribute], run: Callable[[], Any]) -> bool:
    """Whether the forward reads none of these before it sets it: it gives the same whether there is what was there,
    nothing to be read, or what the last call has left. Ops are compared too: meta tensors have no numbers."""

    def result_of(start: Mapping[Attribute, Any]) -> tuple[Any, dict[Attribute, Any]]:
        with kept(model):
            for (path, name), value in start.items():
                setattr(model.get_submodule(path), name, value)
            with OpsSeen() as ops:
                result = tree_map_only(Tensor, Tensor.clone, run())
            return (result, ops.seen), {
                (path, name): vars(model.get_submodule(path))[name] for path, name in attributes
            }

    try:
        expected, values = result_of({})
        unread, set_now = result_of({at: not_kept(under(*at)) for at in attributes})
        again, _ = result_of(values)
    except WHAT_FORWARDS_RAISE as error:
        if not isinstance(error, PartitionError):
            raise_if_ours(error)
        return False
    anew = not any(isinstance(value, NotKept) for value in set_now.values())
    return anew and are_same_results(unread, expected) and are_same_results(again, expected)
