"""Parts of a stage that run again in its backward: what they save for it is not held, as torch.utils.checkpoint does.

PyTorch's own runs again for every backward through a graph. Where the backward is split there is one for each op that
reads weights, and weights of other workers are not there any more; so what has run again is held until all are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

from bppsa.common.graph import tensors_in
from bppsa.common.leaves import without_graph
from bppsa.common.stages import RecomputedPart, is_product
from bppsa.errors import WorkerError
from bppsa.runtime.worker.draws import drawing_from, seed_here
from bppsa.runtime.worker.modes import Harmless, Modes
from bppsa.runtime.worker.norms import watched
from bppsa.runtime.worker.over_nothing import OverNothing

Norms = Sequence[tuple[str, _NormBase]]
OTHERWISE = (
    "a part of a stage that is recomputed has computed or saved other tensors than in its forward, so its gradients "
    "would be wrong; let it compute the same each time, or leave recompute= and torch.utils.checkpoint out"
)


def recompute(module: fx.GraphModule, parts: Sequence[RecomputedPart], norms: Norms, split: bool) -> None:
    """Has these parts of the module's graph run again. split: whether more than one backward goes through it."""
    for part in parts:
        names = set(part.nodes)
        nodes = [node for node in module.graph.nodes if node.name in names]
        inside = set(nodes)
        given = dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in inside)
        made = [node for node in nodes if not inside.issuperset(node.users)]
        run = Rerun(inner(module, nodes, list(given), made), norms, part.products, split)
        with module.graph.inserting_after(nodes[-1]):
            call = module.graph.call_function(run, tuple(given))
        for i, node in reversed([*enumerate(made)]):
            with module.graph.inserting_after(call):
                taken = module.graph.call_method("__getitem__", (call, i))
            node.replace_all_uses_with(taken)
        for node in reversed(nodes):
            module.graph.erase_node(node)
    if parts:
        module.recompile()


def inner(
    module: fx.GraphModule, nodes: Sequence[fx.Node], given: Sequence[fx.Node], made: Sequence[fx.Node]
) -> fx.GraphModule:
    """These nodes as a module, which has the same modules as the whole."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in given}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in made))
    return fx.GraphModule(module, graph)


class Rerun:
    """A part as one op of its graph, which calls it by `__name__`."""

    __name__ = "recomputed"

    def __init__(self, run: fx.GraphModule, norms: Norms, products: bool, several: bool) -> None:
        """products: whether their results are held. several: whether several backwards go through it."""
        there = set(run.modules())
        self.run, self.norms = run, [(path, norm) for path, norm in norms if norm in there]
        self.products, self.several = products, several

    def __call__(self, *args: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.run(*args)
        return SavedRun(self, args).first(args)


class TensorKind(NamedTuple):
    shape: torch.Size
    dtype: torch.dtype


class Enough(BaseException):
    """All has been found that the first run had saved. No error: torch.fx reports those where they pass."""


class Finding(Harmless, TorchFunctionMode):
    """Ends a run with the first op behind the one that saved the last tensor. That one ends first: it may have saved
    what it fills only then, such as the noise of rrelu."""

    def __init__(self, count: int) -> None:
        """count: how many tensors the first run saved."""
        super().__init__()
        self.count = count
        self.found: list[Tensor] = []

    def keep(self, x: Tensor) -> Tensor:
        self.found.append(x.detach())
        return self.found[-1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if len(self.found) >= self.count:
            raise Enough
        return func(*args, **(kwargs or {}))


class SavedRun:
    """One call of a part: what it takes to run it again, and then what that has saved."""

    def __init__(self, part: Rerun, args: Sequence[Any]) -> None:
        self.part, self.seed = part, seed_here()
        self.modes = Modes(True, False, Modes.here().autocast)
        self.over_nothing = any(isinstance(mode, OverNothing) for mode in _get_current_function_mode_stack())
        self.args = tree_map(without_graph, args)
        self.saved: list[TensorKind] = []
        self.found: dict[int, Tensor] = {}
        self.products = HeldProducts()

    def first(self, args: Sequence[Any]) -> Any:
        with saved_tensors_hooks(self.note, self.find), self.holding(Holding(self.products)):
            return self.part.run(*args)

    def holding(self, mode: TorchDispatchMode) -> AbstractContextManager[Any]:
        return mode if self.part.products else nullcontext()

    def note(self, x: Tensor) -> int:
        self.saved.append(TensorKind(x.shape, x.dtype))
        return len(self.saved) - 1

    def find(self, number: int) -> Tensor:
        if number not in self.found:
            self.run_again()
        return self.found[number] if self.part.several else self.found.pop(number)

    def run_again(self) -> None:
        """Raises WorkerError where it saves something else than the first time."""
        finding = Finding(len(self.saved))
        with ExitStack() as stack:
            stack.enter_context(self.modes.entered())
            stack.enter_context(drawing_from(self.seed))
            stack.enter_context(watched(self.part.norms))
            stack.enter_context(saved_tensors_hooks(finding.keep, lambda x: x))
            stack.enter_context(self.holding(Replaying(self.products)))
            stack.enter_context(OverNothing() if self.over_nothing else nullcontext())
            with suppress(Enough), finding:
                self.part.run(*self.args)
        if self.saved != [TensorKind(x.shape, x.dtype) for x in finding.found]:
            raise WorkerError(OTHERWISE)
        self.found = dict(enumerate(finding.found))


class HeldProduct(NamedTuple):
    """What a product gave, and the version that each of its tensors had: it may be changed in place later. asked: the
    op, and the shapes that it was given."""

    asked: tuple[Any, ...]
    result: Any
    versions: list[int]


class HeldProducts:
    """Holds the products of one run. changed: storages that were changed in place, which versions do not tell of an
    unsafe_chunk, as PyTorch's recurrent layers take of a product."""

    def __init__(self) -> None:
        self.products: list[HeldProduct] = []
        self.changed: set[int | None] = set()

    def as_it_was(self, product: HeldProduct) -> bool:
        there = tensors_in(product.result)
        return product.versions == versions(there) and self.changed.isdisjoint(map(storage_of, there))


class Holding(Harmless, TorchDispatchMode):
    """Keeps what products give."""

    def __init__(self, held: HeldProducts) -> None:
        super().__init__()
        self.held = held

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if holds(func):
            self.held.products.append(
                HeldProduct(asked(func, args), tree_map_only(Tensor, Tensor.detach, made), versions(made))
            )
        if func._schema.is_mutable:
            self.held.changed |= {storage_of(x) for x in tensors_in((args, kwargs))}
        return made


class Replaying(Harmless, TorchDispatchMode):
    """Gives again what products gave, and computes all else."""

    def __init__(self, held: HeldProducts) -> None:
        super().__init__()
        self.held, self.products = held, iter(held.products)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if holds(func):
            product = next(self.products, None)
            if product is None or product.asked != asked(func, args):  # another one's result would be a wrong number
                raise WorkerError(OTHERWISE)
            if self.held.as_it_was(product):
                return tree_map_only(Tensor, Tensor.detach, product.result)
        return func(*args, **(kwargs or {}))


def holds(func: Any) -> bool:
    """Not within custom Functions, which run without gradients: kernels may write over what they have made."""
    return is_product(func) and torch.is_grad_enabled()


def asked(func: Any, args: Any) -> tuple[Any, ...]:
    return func, *(x.shape for x in tensors_in(args))


def versions(made: Any) -> list[int]:
    return [x._version for x in tensors_in(made)]


def storage_of(tensor: Tensor) -> int | None:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else None
