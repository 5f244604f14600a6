"""Which module of a model runs, while it is recorded."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from bppsa.common.graph import paths_in


@contextmanager
def located(model: Any) -> Iterator[Callable[[], str]]:
    """Gives the path of the module that runs in this thread, within the block."""
    paths = paths_in(model)
    inside: list[str] = []
    here = threading.get_ident()

    def enter(module: nn.Module, args: Any) -> None:
        if threading.get_ident() == here:
            inside.append(paths.get(id(module), ""))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == here:
            inside.pop()

    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
    try:
        yield lambda: inside[-1] if inside else ""
    finally:
        for hook in hooks:
            hook.remove()


def raised_in(model: Any, error: BaseException) -> str:
    """The path and class of the innermost module of the model that this error passed through."""
    paths = paths_in(model)
    frames = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    found = [module for module in frames if id(module) in paths]
    return f"{paths[id(found[-1])] or '<model>'} ({type(found[-1]).__name__})" if found else "<model>"
