"""The ways to run a model: PyTorch's own, and bppsa's strategies. A new one is a row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

import bppsa

BASELINE = "PyTorch"

# A model -> one with the same Parameters.
WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    BASELINE: lambda model: model,
    "auto": bppsa.compile,
    "sequential": partial(bppsa.compile, strategy="sequential"),
    "chunked": partial(bppsa.compile, strategy="chunked"),
    "blelloch": partial(bppsa.compile, strategy="blelloch"),
}

# Which ones, by the type of the device. On a CPU no scan pays; one stands in Fig 8 to show that.
USUAL = {"cpu": (BASELINE, "auto", "chunked"), "cuda": (BASELINE, "chunked", "sequential", "blelloch")}
