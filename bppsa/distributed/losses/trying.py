"""Tries whether a loss is the mean or sum that it is taken for: that of two micro-batches together is theirs."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
        whole = float(split_loss(theirs(self.loss_fn, output, target))[0])
        parts = a.loss + b.loss if self.sums else (a.loss * counts[0] + b.loss * counts[1]) / sum(counts)
        if not math.isfinite(whole):
            return
        if not (math.isfinite(parts) and abs(whole - parts) <= rounding * max(abs(whole), abs(parts))):
            raise ArgumentError(
                f"loss_fn gives {whole:.6g} for the {sum(sizes)} rows of two micro-batches, and {a.loss:.6g} and "
                f"{b.loss:.6g} for each: it is no {'sum' if self.sums else 'mean'} over rows, and the micro-batches' "
                f"losses do not make the batch's; give it reduction='sum' where it is a sum, or {ASKED}"
            )


def put_together(pieces: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Raises InputError where the leaves are neither rows nor the same for both."""
    if all(is_batched(x, size) for x, size in zip(pieces, sizes, strict=True)):
        return torch.cat([x.detach() for x in pieces])
    first, second = pieces
    tensors = isinstance(first, Tensor) and isinstance(second, Tensor)
    if first is second or (torch.equal(first, second) if tensors else first == second):
        return first
    raise InputError("the outputs or targets of micro-batches have no rows in dimension 0")
