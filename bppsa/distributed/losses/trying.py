"""Tries whether a loss is the mean or sum that it is taken for: that of all micro-batches together is theirs, and so is
its gradient."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from bppsa.common.graph import differentiable_in
from bppsa.common.leaves import wanting
from bppsa.distributed.batch.batches import is_batched, joined
from bppsa.distributed.losses.metrics import split_loss
from bppsa.errors import ArgumentError, InputError
from bppsa.fxpasses.theirs import theirs

ASKED = (
    "give loss_weight=, what a micro-batch counts, such as len, or of labels that may be -1 lambda target: "
    "(target >= 0).sum()"
)


class Tried(NamedTuple):
    """A micro-batch whose loss is known. output: as loss_fn was given it."""

    loss: float
    output: Any
    target: Any


class LossTrial:
    """The trial of one step, made when the last micro-batch has its loss, of all of them: a loss may do one thing with
    a few rows and another with many."""

    def __init__(self, loss_fn: Callable[..., Any], weights: Sequence[float], sizes: Sequence[int], sums: bool) -> None:
        """weights, sizes: of each micro-batch what its loss counts, and its rows. sums: whether it says it is a sum."""
        self.loss_fn, self.weights, self.sizes, self.sums = loss_fn, weights, sizes, sums
        self.tried: dict[int, Tried] = {}
        self.lock = threading.Lock()  # micro-batches may be on several threads

    @torch.no_grad()
    def __call__(self, batch: int, loss: Tensor, output: Any, target: Any) -> None:
        """Raises ArgumentError where the batch's loss is not made up of theirs. Micro-batches that count for nothing do
        not come here."""
        with self.lock:
            self.tried[batch] = Tried(float(loss), output, target)
            last = len(self.tried) == sum(map(bool, self.weights))
        if last and len(self.tried) > 1:
            self.compare(sorted(self.tried), torch.finfo(loss.dtype).eps ** 0.5)

    def compare(self, batches: Sequence[int], rounding: float) -> None:
        pieces, sizes = [self.tried[b] for b in batches], [self.sizes[b] for b in batches]
        try:
            output = joined([piece.output for piece in pieces], sizes, put_together)
            target = joined([piece.target for piece in pieces], sizes, put_together)
        except InputError as error:
            raise ArgumentError(f"what loss_fn counts cannot be tried: {error}; {ASKED}") from None
        whole, gradients = self.graded(output, target)
        shares = [self.weights[b] for b in batches]
        parts = sum(piece.loss * share for piece, share in zip(pieces, shares, strict=True))
        if not math.isfinite(whole):
            return
        if not (math.isfinite(parts) and abs(whole - parts) <= rounding * max(abs(whole), abs(parts))):
            raise ArgumentError(
                f"loss_fn gives {whole:.6g} for the {sum(sizes)} rows of all micro-batches, and "
                f"{', '.join(f'{piece.loss:.6g}' for piece in pieces)} for each: {self.not_made_up()}"
            )
        parted = zip(pieces, shares, strict=True)
        of_parts = [self.graded(piece.output, piece.target, share)[1] for piece, share in parted]
        for found, *each in zip(gradients, *of_parts, strict=True):
            if not agree(found, made_up(found, each)):
                raise ArgumentError(
                    f"the gradient that loss_fn gives its output, for the {sum(sizes)} rows of all micro-batches, is "
                    f"not that of each: {self.not_made_up()}"
                )

    def not_made_up(self) -> str:
        return (
            f"it is no {'sum' if self.sums else 'mean'} over rows, and the micro-batches' losses do not make the "
            f"batch's; give it reduction='sum' where it is a sum, or {ASKED}"
        )

    @torch.enable_grad()
    def graded(self, output: Any, target: Any, weight: float = 1.0) -> tuple[float, list[Tensor]]:
        """The loss times the weight, and its gradients with respect to the output's tensors: a backward of the user's
        may do one thing with small gradients and another with large ones."""
        leaves, spec = tree_flatten(output)
        given = [wanting(x) for x in leaves]
        ends = tree_unflatten(list(map(copied, given)), spec)  # a loss may change in place what it is given
        loss = split_loss(theirs(self.loss_fn, ends, tree_map(copied, target)))[0] * weight
        wanted = differentiable_in(given)
        if not wanted or not loss.requires_grad:
            return loss.item(), [torch.zeros_like(x) for x in wanted]
        options = {"allow_unused": True, "materialize_grads": True}
        return loss.item(), list(theirs(torch.autograd.grad, loss, wanted, **options))


def as_given(output: Any) -> Any:
    """A copy that stays what it is: a loss may change in place what it is given, as one does that makes its gradient of
    its logits."""
    return tree_map(lambda x: copied(x.detach()) if isinstance(x, Tensor) else x, output)


def copied(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x


def made_up(whole: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """The gradient of the micro-batches' losses together: of their rows, or of what all have."""
    return sum(parts[1:], parts[0]) if whole.shape == parts[0].shape else torch.cat(list(parts))


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether they differ by no more than rounding; what is not finite tells nothing."""
    if not a.isfinite().all():
        return True
    rounding = torch.finfo(a.dtype).eps ** 0.5
    return bool((a - b).abs().max() <= rounding * max(a.abs().max(), b.abs().max())) if a.numel() else True


def put_together(pieces: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Raises InputError where the leaves are neither rows nor the same for all."""
    if all(is_batched(x, size) for x, size in zip(pieces, sizes, strict=True)):
        return torch.cat([x.detach() for x in pieces])
    first, *others = pieces
    if all(is_same(first, other) for other in others):
        return first
    raise InputError("the outputs or targets of micro-batches have no rows in dimension 0")


def is_same(a: Any, b: Any) -> bool:
    tensors = isinstance(a, Tensor) and isinstance(b, Tensor)
    return bool(a is b or (torch.equal(a, b) if tensors else a == b))
