"""PyTorch's own function where one of a user's stands in its place.

A function mode is given what stands under the name of PyTorch's function. What a user has put there has been called by
then, and has called PyTorch's: called once more by the mode, it would do its part twice.
"""

from __future__ import annotations

import sys
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._C import TensorBase
from torch.nn import functional
from torch.overrides import handle_torch_function

from bppsa.fxpasses.lines import is_users

# Those that are written in Python, and ask modes themselves.
IN_PYTHON: dict[CodeType, FunctionType] = {
    value.__code__: value
    for space in (torch, torch.functional, torch.autograd, functional, Tensor)
    for value in vars(space).values()
    if type(value) is FunctionType and not is_users(value.__code__.co_filename)
}


def of_pytorch(func: Any) -> Any:
    """func: as a mode's `__torch_function__`, which calls this, is given it. One of a user's that asks modes itself is
    what it is."""
    if type(func) is not FunctionType or not is_users(func.__code__.co_filename):
        return func
    frame = sys._getframe(2)
    if frame.f_code is handle_torch_function.__code__ and frame.f_back is not None:
        code, space = frame.f_back.f_code, frame.f_back.f_globals
        if is_users(code.co_filename) or code.co_freevars:
            return func
        return IN_PYTHON.get(code) or FunctionType(code, space, code.co_name)  # replaced before this was imported
    names = [name for name, value in vars(Tensor).items() if value is func]
    return next((vars(TensorBase)[name] for name in names if name in vars(TensorBase)), func)
