"""What a region on blocked images costs, and what PyTorch takes for the same layers: predicted milliseconds.

The rates were measured on two cores of an AMD EPYC with AVX-512 and torch 2.13, float32, at their best for PyTorch and
in the middle for ours; what decides is the quotient, in which most of a machine's speed cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bppsa.plan.choose import Choice, Numbers

MARGIN = 1.2  # how many times faster a region has to be predicted
OURS_CALL_MS = 0.1  # of each pass through a region: of the forward, and of the backward
# A row with so many of its weights goes through channels chunk by chunk, which stay in the nearest cache.
LEAST_DENSITY = 0.04
OURS_PRODUCTS, OURS_CHUNKED = 50e6, 65e6  # multiply-adds a millisecond
OURS_ENTRIES = {"forward": 1.6e6, "backward": 0.7e6}  # a millisecond and pass: values fetched, gradients put away
OURS_GRADIENTS = 8e6  # of all weights, written a millisecond
THEIRS_STEP_MS = 0.02
THEIRS_PRODUCTS = 120e6
THEIRS_WEIGHTS = {"linear": 3e6, "conv": 12e6}  # a millisecond and pass, however few samples there are
REALS = 16e6  # numbers read or written a millisecond, of activations and of weights that are masked
# Weights from which a gradient of kept entries alone saves more than the ten microseconds of Python that it takes, and
# the share of them that may be kept: beyond, hardly a cache line is skipped.
LEAST_WEIGHTS, MOST_KEPT = 1 << 16, 0.25


def gives_kept_alone(kept: int, weights: int) -> bool:
    """Whether a weight's gradient is handed on as its kept entries alone."""
    return weights >= LEAST_WEIGHTS and kept <= MOST_KEPT * weights


@dataclass(frozen=True)
class LayerWork:
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

    def passes(self, training: bool) -> int:
        return (2 if self.first else 3) if training else 1


def ours_ms(work: LayerWork, rows: int, training: bool) -> float:
    """rows: samples, with those that fill up the last block."""
    passes = work.passes(training)
    entries = work.kept / OURS_ENTRIES["forward"] + (passes - 1) * work.kept / OURS_ENTRIES["backward"]
    written = work.kept if gives_kept_alone(work.kept, work.weights) else work.weights
    gradients = written / OURS_GRADIENTS if training else 0
    moved = passes * work.activations * rows / REALS
    chunked = not work.linear and work.kept >= LEAST_DENSITY * work.weights
    rate = OURS_CHUNKED if chunked else OURS_PRODUCTS
    return passes * work.kept * work.pixels * rows / rate + entries + gradients + moved


def theirs_ms(work: LayerWork, samples: int, training: bool) -> float:
    passes = work.passes(training)
    products = passes * work.weights * work.pixels * samples / THEIRS_PRODUCTS
    reading = passes * work.weights / THEIRS_WEIGHTS["linear" if work.linear else "conv"]
    masking = (3 if training else 1) * work.weights / REALS if work.masked else 0
    return THEIRS_STEP_MS + products + reading + masking


def choose_region(layers: Sequence[LayerWork], samples: int, lanes: int, training: bool) -> Choice:
    rows = -(-samples // lanes) * lanes
    ours = OURS_CALL_MS * (2 if training else 1) + sum(ours_ms(layer, rows, training) for layer in layers)
    theirs = sum(theirs_ms(layer, samples, training) for layer in layers)
    gain, what = theirs / ours, "forward and backward" if training else "forward"
    numbers: Numbers = {"predicted ms": round(ours, 3), "PyTorch's": round(theirs, 3)}
    if gain < MARGIN:
        return Choice("pytorch", f"{what} predicted {gain:.2f} times as fast as PyTorch's", numbers)
    return Choice("blocked", f"{what} predicted {gain:.1f} times as fast as PyTorch's", numbers)


def gain_of(work: LayerWork, samples: int, lanes: int, training: bool) -> float:
    """How many times as fast one layer is predicted, conversions left aside."""
    return theirs_ms(work, samples, training) / ours_ms(work, -(-samples // lanes) * lanes, training)
