"""`bppsa.loop`: a function or a method whose loops over time run as scans."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

import torch

from bppsa.codegen.cpu import build
from bppsa.decisions import RECORD, Report
from bppsa.errors import ArgumentError, kind_of
from bppsa.frontend.call_log import collecting
from bppsa.frontend.loops.call import call
from bppsa.frontend.loops.outlined import Outlines, in_place_of
from bppsa.frontend.loops.state import LoopState

F = TypeVar("F", bound=Callable[..., Any])


def loop(function: F) -> F:
    """The function, or method, with its loops over time as scans: what `bppsa.compile` does with a module's forward.

    The first call of each kind (sizes, dtypes, flags, whatever it reads) runs as PyTorch runs it, and is watched; where
    all that it does is known, later calls run its loops as one scan each. Where the function does around its loops what
    only Python can, each loop is looked at alone. A loop that changes what lives on, or takes gradients itself, is left
    to PyTorch. `bppsa.report(function)` tells what the last call has decided.

    Raises ArgumentError (a TypeError) for what is no function of Python's.
    """
    if not isinstance(function, FunctionType):
        raise ArgumentError(f"bppsa.loop takes a function, not {kind_of(function)}; a module is compiled")

    state = LoopState(function.__name__)

    @functools.wraps(function)
    def looped(*args: Any, **kwargs: Any) -> Any:
        return run(function, state, args, kwargs)

    setattr(looped, RECORD, state)
    return cast(F, looped)


def run(function: FunctionType, state: LoopState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    root: Any = function
    if args and is_method(function, args[0]):
        root, args = MethodType(function, args[0]), args[1:]
    if torch.compiler.is_compiling() or build.available() is not None:
        return root(*args, **kwargs)
    if state.outlined is None and state.is_in_vain:
        made = Outlines(state, [] if root is function else [type(root.__self__)]).of(function)
        state.outlined = {} if made is None else {function: made}
    with collecting() as taken:
        if state.outlined:
            result = in_place_of(root, state.outlined[function])(*args, **kwargs)
        else:
            result = call(root, root, state, args, kwargs)
    state.report = Report(tuple(taken))
    return result


def is_method(function: FunctionType, first: Any) -> bool:
    """Whether `first` is the object that it was called on."""
    found = getattr(type(first), function.__name__, None)
    return getattr(found, "__wrapped__", None) is function


def report_of(function: Any) -> Report | None:
    """What the last call of a function that `loop` returned has decided; None of anything else."""
    state = getattr(function, RECORD, None) if isinstance(function, (FunctionType, MethodType)) else None
    return state.report if isinstance(state, LoopState) else None
