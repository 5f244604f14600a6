"""A model's step on the meta device: which ops run forward and backward, what they cost, and what autograd keeps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from bppsa.common.graph import differentiable_in, tensors_in
from bppsa.distributed.planned.attention import FusedAttention
from bppsa.errors import PartitionError, first_line
from bppsa.fxpasses.partition.call.refusals import WHAT_FORWARDS_RAISE
from bppsa.fxpasses.partition.ops.costs import bytes_of, product_flops
from bppsa.fxpasses.theirs import raise_if_ours, theirs

Amount = tuple[float, float]  # flops of matrix products, and bytes read and written


@dataclass
class OpTrace:
    """One op of the forward, for one micro-batch. backward, weight: what the gradients of its inputs, and of its
    weights, take. saved: storages that autograd keeps; reads, writes: all storages; each with its bytes elsewhere."""

    forward: Amount
    sequence: int
    reads: frozenset[int]
    writes: frozenset[int]
    backward: Amount = (0.0, 0.0)
    weight: Amount = (0.0, 0.0)
    saved: set[int] = field(default_factory=set)


class HeldParameter(NamedTuple):
    """trained: whether it has a gradient."""

    elements: int
    bytes: int
    trained: bool


@dataclass(frozen=True)
class StepTrace:
    """ops: in the order of the forward. parameters: by storage; bytes: of every other storage; input: bytes of a
    micro-batch's arguments."""

    ops: tuple[OpTrace, ...]
    parameters: Mapping[int, HeldParameter]
    bytes: Mapping[int, int]
    input: int


@dataclass
class BackwardOp:
    """sequence: of the forward's node that it is the backward of. outputs: storages."""

    sequence: int
    amount: Amount
    outputs: frozenset[int]


class OpLog(TorchDispatchMode):
    """The ops of a forward, then, once `going_back`, those of its backward; and what autograd saves."""

    def __init__(self) -> None:
        super().__init__()
        self.forward: list[OpTrace] = []
        self.backward: list[BackwardOp] = []
        self.saved: list[tuple[int, int]] = []  # sequence number of a node, and a storage
        self.storages: dict[int, Any] = {}  # kept, so that no number is used twice
        self.going_back = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = theirs(func, *args, **kwargs)
        if func.is_view:
            return out
        read, made = tensors_in((args, kwargs)), tensors_in(out)
        amount = product_flops(func, args, kwargs, out), float(sum(map(bytes_of, read)) + sum(map(bytes_of, made)))
        reads, writes = frozenset(map(self.number, read)), frozenset(map(self.number, made))
        if not self.going_back:
            self.forward.append(OpTrace(amount, torch.autograd._get_sequence_nr() - 1, reads, writes))  # type: ignore[attr-defined]
        else:
            node = torch._C._current_autograd_node()
            sequence = node._sequence_nr() if node is not None else 0
            self.backward.append(BackwardOp(sequence, amount, writes))
        return out

    def number(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        self.storages[storage._cdata] = storage
        return int(storage._cdata)

    def keep(self, tensor: Tensor) -> Tensor:
        self.saved.append((torch.autograd._get_sequence_nr() - 1, self.number(tensor)))  # type: ignore[attr-defined]
        return tensor


def on_meta(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    return torch.empty_like(tensor, dtype=kind, device="meta").requires_grad_(tensor.requires_grad)


def with_rows(example: Sequence[Any], rows: int, dtype: torch.dtype | None) -> list[Any]:
    """The example on the meta device, with `rows` rows in every tensor that has as many as the first."""
    first = next((len(x) for x in tensors_in(example) if x.dim()), None)

    def of_rows(x: Tensor) -> Tensor:
        meta = on_meta(x.detach(), dtype)
        return meta.new_empty((rows, *x.shape[1:])) if x.dim() and len(x) == first else meta

    return tree_map_only(Tensor, of_rows, list(example))


def traced(
    model: nn.Module, example: Sequence[Any], named: Mapping[str, Any], rows: int, dtype: torch.dtype | None
) -> StepTrace:
    """A training step of one micro-batch of `rows` rows. Neither the model nor the example is changed.

    Raises PartitionError where the forward does not run without values, or no output depends on a Parameter.
    """
    weights = {name: on_meta(x, dtype) for name, x in model.named_parameters()}
    buffers = {name: on_meta(x, dtype) for name, x in model.named_buffers()}
    keys = list(named)
    given = with_rows([*example, *named.values()], rows, dtype)
    args, kwargs = given[: len(example)], dict(zip(keys, given[len(example) :], strict=True))
    log = OpLog()
    try:
        with (
            torch.enable_grad(),
            torch.device("meta"),
            FusedAttention(),
            log,
            saved_tensors_hooks(log.keep, lambda x: x),
        ):
            result = theirs(torch.func.functional_call, model, {**weights, **buffers}, tuple(args), kwargs)
    except WHAT_FORWARDS_RAISE as error:
        raise_if_ours(error)
        raise PartitionError(
            f"{type(model).__name__} does not run on the meta device, where tensors have shapes and no values: "
            f"{first_line(error)}; let its tensors be Parameters or buffers, and its branches not look at values"
        ) from error
    outputs = differentiable_in(result)
    wanted = [x for x in weights.values() if x.requires_grad]
    if not outputs or not wanted:
        raise PartitionError(
            f"{type(model).__name__} has no output that depends on a Parameter; there is nothing to train"
        )
    log.going_back = True
    with log:
        ones = [torch.empty_like(x) for x in outputs]
        gradients = torch.autograd.grad(outputs, wanted, ones, allow_unused=True)
    attribute(log, {log.number(x) for x in gradients if x is not None})
    held = {
        log.number(x): HeldParameter(x.numel(), x.numel() * x.element_size(), x.requires_grad) for x in weights.values()
    }
    of_model = held.keys() | {log.number(x) for x in buffers.values()}
    for op in log.forward:
        op.saved -= of_model
    sizes = {number: storage.nbytes() for number, storage in log.storages.items() if number not in of_model}
    return StepTrace(tuple(log.forward), held, sizes, sum(map(bytes_of, tensors_in(given))))


def attribute(log: OpLog, gradients: set[int]) -> None:
    """Notes with each op of the forward what its node keeps and runs. gradients: storages of those of Parameters."""
    sequences = [op.sequence for op in log.forward]

    def op_of(sequence: int) -> OpTrace:
        return log.forward[min(bisect_left(sequences, sequence), len(sequences) - 1)]

    for sequence, number in log.saved:
        op_of(sequence).saved.add(number)
    for one in log.backward:
        op = op_of(one.sequence)
        if one.outputs & gradients:
            op.weight = plus(op.weight, one.amount)
        else:
            op.backward = plus(op.backward, one.amount)


def plus(a: Amount, b: Amount) -> Amount:
    return a[0] + b[0], a[1] + b[1]
