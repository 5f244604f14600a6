"""Tries whether a loss is the mean or sum that it is taken for: that of two micro-batches together is theirs, and so is
its gradient."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

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
    """A micro-batch whose loss is known."""

    batch: int
    loss: float
    output: Any
    target: Any


class LossTrial:
    """The trial of one step. Each micro-batch is compared with the one that came before it, so that all are compared
    with all: those whose rows count alike, as where a batch is sorted by length, differ from others."""

    def __init__(self, loss_fn: Callable[..., Any], counts: Sequence[float], sizes: Sequence[int], sums: bool) -> None:
        """counts, sizes: of each micro-batch what it is weighted by, and its rows."""
        self.loss_fn, self.counts, self.sizes, self.sums = loss_fn, counts, sizes, sums
        self.last: Tried | None = None
        self.lock = threading.Lock()  # micro-batches may be on several threads

    @torch.no_grad()
    def __call__(self, batch: int, loss: Tensor, output: Any, target: Any) -> None:
        """Raises ArgumentError where the loss of two micro-batches is not made up of theirs."""
        here = Tried(batch, float(loss), output, target)
        with self.lock:
            before, self.last = self.last, here
        if before is not None:
            self.compare(before, here, torch.finfo(loss.dtype).eps ** 0.5)

    def compare(self, a: Tried, b: Tried, rounding: float) -> None:
        sizes, counts = [self.sizes[a.batch], self.sizes[b.batch]], (self.counts[a.batch], self.counts[b.batch])
        try:
            output = joined([a.output, b.output], sizes, put_together)
            target = joined([a.target, b.target], sizes, put_together)
        except InputError as error:
            raise ArgumentError(
                f"loss_fn cannot be traced, and what it counts cannot be tried: {error}; {ASKED}"
            ) from None
        whole, gradients = self.graded(output, target)
        shares = (1.0, 1.0) if self.sums else (counts[0] / sum(counts), counts[1] / sum(counts))
        parts = a.loss * shares[0] + b.loss * shares[1]
        if not math.isfinite(whole):
            return
        if not (math.isfinite(parts) and abs(whole - parts) <= rounding * max(abs(whole), abs(parts))):
            raise ArgumentError(
                f"loss_fn gives {whole:.6g} for the {sum(sizes)} rows of two micro-batches, and {a.loss:.6g} and "
                f"{b.loss:.6g} for each: {self.not_made_up()}"
            )
        of_parts = [self.graded(one.output, one.target)[1] for one in (a, b)]
        for found, *each in zip(gradients, *of_parts, strict=True):
            if not agree(found, made_up(found, each, shares)):
                raise ArgumentError(
                    f"the gradient that loss_fn gives its output, for the {sum(sizes)} rows of two micro-batches, is "
                    f"not that of each: {self.not_made_up()}"
                )

    def not_made_up(self) -> str:
        return (
            f"it is no {'sum' if self.sums else 'mean'} over rows, and the micro-batches' losses do not make the "
            f"batch's; give it reduction='sum' where it is a sum, or {ASKED}"
        )

    @torch.enable_grad()
    def graded(self, output: Any, target: Any) -> tuple[float, list[Tensor]]:
        """The loss, and its gradients with respect to the output's tensors."""
        leaves, spec = tree_flatten(output)
        given = [wanting(x) for x in leaves]
        ends = tree_unflatten(list(map(copied, given)), spec)  # a loss may change in place what it is given
        loss = split_loss(theirs(self.loss_fn, ends, tree_map(copied, target)))[0]
        wanted = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
        if not wanted or not loss.requires_grad:
            return loss.item(), [torch.zeros_like(x) for x in wanted]
        options = {"allow_unused": True, "materialize_grads": True}
        return loss.item(), list(theirs(torch.autograd.grad, loss, wanted, **options))


def copied(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x


def made_up(whole: Tensor, parts: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """The gradient of two micro-batches' losses together: of their rows, or of what both have."""
    weighted = [x * share for x, share in zip(parts, shares, strict=True)]
    return sum(weighted[1:], weighted[0]) if whole.shape == parts[0].shape else torch.cat(weighted)


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether they differ by no more than rounding; what is not finite tells nothing."""
    if not a.isfinite().all():
        return True
    rounding = torch.finfo(a.dtype).eps ** 0.5
    return bool((a - b).abs().max() <= rounding * max(a.abs().max(), b.abs().max())) if a.numel() else True


def put_together(pieces: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Raises InputError where the leaves are neither rows nor the same for both."""
    if all(is_batched(x, size) for x, size in zip(pieces, sizes, strict=True)):
        return torch.cat([x.detach() for x in pieces])
    first, second = pieces
    tensors = isinstance(first, Tensor) and isinstance(second, Tensor)
    if first is second or (torch.equal(first, second) if tensors else first == second):
        return first
    raise InputError("the outputs or targets of micro-batches have no rows in dimension 0")
