"""Sizes that export cannot leave open, or not within a bearable time: windows over an image, which is padded to a
multiple of them, make terms that sympy takes minutes for, and a size after two poolings is an equation that it does not
solve."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import SymInt
from torch.overrides import TorchFunctionMode

from bppsa.common.graph import tensors_in
from bppsa.fxpasses.partition.capture.lines import asks
from bppsa.fxpasses.theirs import theirs

MOST = 20  # operations in a size; models whose sizes stay below were exported within 20 s


class Intricate(Exception):
    """A size of more operations, or an unsolved one. No error: the model is exported once more, with fewer sizes left
    open."""


@contextmanager
def bearable() -> Iterator[None]:
    """Raises Intricate within the block."""
    try:
        with Bearable():
            yield
    except NotImplementedError as error:
        if is_solvers(error):
            raise Intricate from error
        raise


def is_solvers(error: NotImplementedError) -> bool:
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("sympy.")


class Bearable(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = theirs(func, *args, **(kwargs or {}))
        if asks(func):
            return made
        shapes = (x.shape for x in tensors_in(made))
        sizes: list[Any] = [n for shape in shapes for n in shape if isinstance(n, SymInt)]
        if any(n.node.expr.count_ops() > MOST for n in sizes):
            raise Intricate
        return made
