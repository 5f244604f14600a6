"""A model recorded for its transposed Jacobian, with its own tensors, its masks, and what decides the pattern."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from bppsa.errors import OURS, ArgumentError, InputError, Unsupported, kind_of
from bppsa.frontend.jacobian.plan import Outdated
from bppsa.fxpasses.network.composites import with_composites
from bppsa.fxpasses.network.located import located, raised_in
from bppsa.fxpasses.network.pruning import carried
from bppsa.fxpasses.network.recorded import MIXES, NodeValues, between, evaluate, network
from bppsa.fxpasses.recording.capture import Recording, record
from bppsa.fxpasses.recording.decompose import DECOMPOSE
from bppsa.fxpasses.theirs import is_ours, theirs
from bppsa.sparsity import TransposedJacobian

Model = Callable[[Tensor], Tensor]
MasksByName = Mapping[str, Tensor]
PICKS = {torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor}  # elements by the numbers in a tensor


# What becomes of `y[:, 0] = x`; any other op is kept, as it has a rule of its own.
WRITES = {torch.ops.aten.copy.default: DECOMPOSE[torch.ops.aten.copy.default]}


@dataclass(frozen=True, eq=False)
class Captured:
    """A recording, and the model's own tensors in it."""

    recording: Recording
    tensors: tuple[Tensor, ...]
    masks: Mapping[fx.Node, Tensor]
    pruning: Sequence[Tensor]  # the masks of torch.nn.utils.prune
    budget: int

    @classmethod
    def of(cls, model: Model, x: Tensor, masks: MasksByName | None, budget: int) -> Captured:
        """Raises Unsupported where the model cannot be recorded."""
        check_arguments(model, x)
        kept = masks_of(model, masks or {})
        with located(model) as where, explained(model, x):
            recording = with_composites(record(lambda x: theirs(model, x.clone()), (x,), decompose=WRITES, where=where))
        if not isinstance(recording.result, fx.Node):
            raise Unsupported("returns more than a tensor", mend="wrap it in a function that picks one")
        by_node = {node: kept[id(tensor)] for tensor, node in recording.captured if id(tensor) in kept}
        tensors, masks = tuple(tensor for tensor, _ in recording.captured), carried(recording.graph, by_node)
        return cls(recording, tensors, masks, list(prune_masks(model).values()), budget)

    def at(self, x: Tensor) -> TransposedJacobian:
        """Raises Unsupported where an op has no rule or mixes the rows, InputError where x seems to be one sample."""
        return self.of_values(x, self.values(x))

    def values(self, x: Tensor) -> NodeValues:
        return evaluate(self.recording, self.tensors, x, self.masks)

    def of_values(self, x: Tensor, values: NodeValues) -> TransposedJacobian:
        try:
            return network(self.recording, values, self.budget)
        except Unsupported as unsupported:
            if x.dim() == 1 and unsupported.reason.what == MIXES:
                mend = f"x needs a batch dimension: give x.unsqueeze(0), [1, {len(x)}], for one sample"
                what = f"x {list(x.shape)} is a batch of {len(x)} numbers, and the model mixes them; {mend}"
                raise InputError(what) from unsupported
            raise

    @functools.cached_property
    def deciding(self) -> tuple[fx.Node, ...]:
        """The nodes whose values, and not only shapes, decide which entries of J can be non-zero: indices, and the
        masks that torch.nn.utils.prune keeps."""
        on_the_way = between(self.recording.arguments[0], self.recording.result)
        indices = [leaf for node in on_the_way if node.target in PICKS for leaf in tree_leaves(node.args[1])]
        masks = [node for tensor, node in self.recording.captured if any(tensor is mask for mask in self.pruning)]
        return tuple(dict.fromkeys(leaf for leaf in (*indices, *masks) if isinstance(leaf, fx.Node)))


@dataclass(frozen=True, eq=False)
class While:
    """J^T at x, as long as `captured.deciding` has the values that a plan was made for. Raises Outdated."""

    captured: Captured
    decided: tuple[Tensor, ...]

    @classmethod
    def of(cls, captured: Captured, values: NodeValues) -> While:
        return cls(captured, tuple(values.of[node].clone() for node in captured.deciding))

    def __call__(self, x: Tensor) -> TransposedJacobian:
        values = self.captured.values(x)
        if not all(torch.equal(values.of[n], was) for n, was in zip(self.captured.deciding, self.decided, strict=True)):
            raise Outdated
        return self.captured.of_values(x, values)


def check_arguments(model: object, x: object) -> None:
    if not callable(model):
        raise ArgumentError(f"the model is {kind_of(model)}; give a module or function that maps x to y")
    if not isinstance(x, Tensor):
        raise ArgumentError(f"x is {kind_of(x)}; give a tensor [B, *n]")
    if x.dim() == 0:
        raise InputError("x has no dimension; give [B, *n], with a batch dimension: x.view(1, 1) for one number")
    if not (x.is_floating_point() or x.is_complex()):
        raise InputError(f"x {list(x.shape)} is {x.dtype}, which has no derivative; give a floating-point tensor")


@contextmanager
def explained(model: Model, x: Tensor) -> Iterator[None]:
    """Errors of PyTorch's about sizes and dtypes as ours, naming the module that ran."""
    try:
        yield
    except tuple(OURS) as error:
        if type(error) not in OURS or is_ours(error):  # a class of the model's own, or a bug
            raise
        given = f"for x {list(x.shape)} {x.dtype} on {x.device}"
        raise OURS[type(error)](f"{raised_in(model, error)}: fails {given} (PyTorch: {error})") from error


def masks_of(model: Model, given: MasksByName) -> dict[int, Tensor]:
    """The masks by the identity of what they mask: those given, and those that torch.nn.utils.prune keeps."""
    parameters = check_masks(model, given)
    found = {id(mask): mask != 0 for mask in prune_masks(model).values()}
    return found | {id(parameters[name]): mask.clone() for name, mask in given.items()}  # patterns are kept by it


def check_masks(model: Model, given: MasksByName) -> Mapping[str, Tensor]:
    """The parameters of the model, of which the masks are for some. Raises InputError for masks that do not fit."""
    parameters = dict(model.named_parameters(remove_duplicate=False)) if isinstance(model, nn.Module) else {}
    for name, mask in given.items():
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            raise InputError(f"masks[{name!r}]: the model has no such parameter; it has {known}")
        weight = parameters[name]
        if mask.dtype != torch.bool or mask.shape != weight.shape:
            raise InputError(
                f"masks[{name!r}] is {mask.dtype} {list(mask.shape)}; it must be torch.bool of the shape of {name}, "
                f"{list(weight.shape)}, True where a weight is kept"
            )
    return parameters


def prune_masks(model: Model) -> dict[str, Tensor]:
    """The buffers in which torch.nn.utils.prune keeps masks: `<name>_mask` beside a parameter `<name>_orig`."""
    if not isinstance(model, nn.Module):
        return {}
    buffers = dict(model.named_buffers())
    pruned = [name.removesuffix("_orig") for name, _ in model.named_parameters() if name.endswith("_orig")]
    return {name: buffers[f"{name}_mask"] for name in pruned if f"{name}_mask" in buffers}
