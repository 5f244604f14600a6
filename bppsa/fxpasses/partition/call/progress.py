"""A line on the terminal for whoever waits while a model is cut; it is gone afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def telling(model: nn.Module, what: str) -> Iterator[None]:
    """Tells what is being done with the model, within the block. Nothing where standard error is no terminal."""
    shown = sys.stderr.isatty()
    if shown:
        sys.stderr.write(f"\r\033[Kbppsa: {type(model).__name__}: {what}")
        sys.stderr.flush()
    try:
        yield
    finally:
        if shown:
            sys.stderr.write("\r\033[K")
