"""Functions that Dynamo is to run as they are, with all that they call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """Where Dynamo has left a call to Python it tries to compile each frame below; not this one, nor those below it.

    `torch.compiler.disable` says the same, and imports all of Dynamo to do so.
    """
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return function
