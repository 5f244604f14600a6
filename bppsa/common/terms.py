"""The terms of a loss that count in unlike ways: in its graph each has a factor of its own, which micro-batches set."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from bppsa.errors import InputError

_job = threading.local()
NONE: tuple[int, Sequence[float]] = (0, ())


def term(x: Any, number: int) -> Any:
    """A term, a tensor or a number, as it is, or within `factored` what a micro-batch's is of the batch's."""
    batch, factors = getattr(_job, "here", NONE)
    if not factors:
        return x
    if not factors[number] and isinstance(x, Tensor):
        check_is_nothing(float(x.detach().abs().sum()), batch)
    return x * factors[number]


@contextmanager
def factored(batch: int, factors: Sequence[float]) -> Iterator[None]:
    """The terms that this thread computes within the block are multiplied by these; () leaves them as they are."""
    before, _job.here = getattr(_job, "here", NONE), (batch, factors)
    try:
        yield
    finally:
        _job.here = before


def check_is_nothing(loss: float, batch: int) -> None:
    """Raises InputError where a micro-batch without a count has a loss: zero divided by zero is no number."""
    if loss and not math.isnan(loss):
        raise InputError(
            f"the loss divides by a count that is zero in micro-batch {batch}, which has a loss all the same: {loss:g} "
            f"before it is divided, and what it is among the others is lost; give the count a least value, as "
            f".clamp(min=1) does, or take microbatches=1"
        )
