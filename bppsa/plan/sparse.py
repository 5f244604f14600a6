"""What a region on blocked images costs, and what PyTorch takes for the same layers: predicted milliseconds.

The rates were measured on two cores of an AMD EPYC with AVX-512 and torch 2.13, float32, at their best for PyTorch and
in the middle for ours; what decides is the quotient, in which most of a machine's speed cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bppsa.plan.choose import Choice, Numbers

MARGIN = 1.2  # how many times faster a region has to be predicted
OURS_CALL_MS, OURS_STEP_MS = 0.1, 0.03
THEIRS_STEP_MS = 0.02
OURS_PRODUCTS = 50e6  # multiply-adds a millisecond
THEIRS_PRODUCTS = 120e6
THEIRS_NARROW = 30e6  # of a linear layer, whose weight is read for few samples
REALS = 4e6  # numbers read or written a millisecond, of activations and weights


@dataclass(frozen=True)
class Work:
    """One convolution or linear layer. kept: its entries; dense: all of them, per output pixel. pixels: of the output,
    for one sample. weights: in the parameter. activations: numbers that come in and go out, for one sample."""

    kept: int
    weights: int
    pixels: int
    activations: int
    masked: bool  # PyTorch multiplies the weight with a mask first
    first: bool  # of its region: as a rule no gradient of its input is asked for

    @property
    def linear(self) -> bool:
        return self.pixels == 1


def ours_ms(work: Work, rows: int, training: bool) -> float:
    """rows: samples, with those that fill up the last block."""
    passes = (2 if work.first else 3) if training else 1
    moved = passes * work.activations * rows + (2 if training else 1) * work.weights / 4
    return OURS_STEP_MS + passes * work.kept * work.pixels * rows / OURS_PRODUCTS + moved / REALS / 4


def theirs_ms(work: Work, samples: int, training: bool) -> float:
    passes = (2 if work.first else 3) if training else 1
    rate = THEIRS_NARROW if work.linear else THEIRS_PRODUCTS
    masking = (3 if training else 1) * work.weights / REALS / 4 if work.masked else 0
    return THEIRS_STEP_MS + passes * work.weights * work.pixels * samples / rate + masking


def choose_region(layers: Sequence[Work], samples: int, lanes: int, training: bool) -> Choice:
    rows = -(-samples // lanes) * lanes
    ours = OURS_CALL_MS + sum(ours_ms(layer, rows, training) for layer in layers)
    theirs = sum(theirs_ms(layer, samples, training) for layer in layers)
    gain, what = theirs / ours, "forward and backward" if training else "forward"
    numbers: Numbers = {"predicted ms": round(ours, 3), "PyTorch's": round(theirs, 3)}
    if gain < MARGIN:
        return Choice("pytorch", f"{what} predicted {gain:.2f} times as fast as PyTorch's", numbers)
    return Choice("blocked", f"{what} predicted {gain:.1f} times as fast as PyTorch's", numbers)
