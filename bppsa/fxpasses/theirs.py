"""Whose error it is: of a function of the user's or of PyTorch's that we call for them, or our own.

Where a model is tried, what its forward raises is an answer: it cannot be cut here, or it cannot do this in evaluation.
What our own code raises meanwhile is a bug, and must be seen as one.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.fx.proxy import TraceError

from bppsa.errors import BppsaError

R = TypeVar("R")
PACKAGE = Path(__file__).parents[1]
OURS = f"{PACKAGE}{os.sep}"
CELLS = f"{PACKAGE / 'cells'}{os.sep}"  # a user's cells, ready to take
PYTORCH = f"{Path(torch.__file__).parent}{os.sep}"
RELEASE = tuple(map(int, str(torch.__version__).split(".")[:2]))  # of torch


def theirs(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """`function(*args, **kwargs)`: what it raises is not for us to answer."""
    return function(*args, **kwargs)


def is_ours(error: BaseException) -> bool:
    """Whether our own code raised it, by mistake: code of ours is the last on the way to it, PyTorch's aside, and did
    not call `theirs`."""
    if isinstance(error, (BppsaError, TraceError)):  # said on purpose
        return False
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    known = [code for code in codes if not code.co_filename.startswith((PYTORCH, "<"))]
    if not known or known[-1] is theirs.__code__:
        return False
    return known[-1].co_filename.startswith(OURS) and not known[-1].co_filename.startswith(CELLS)


def raise_if_ours(error: BaseException) -> None:
    """Raise an error again that is ours. One that is not is the answer of what was tried, for the caller to read."""
    if is_ours(error):
        raise error
