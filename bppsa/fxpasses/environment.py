"""What a cell depends on besides its arguments: the tensors it may close over, and a key of everything else.

Two calls with equal keys may share one recording: the code is the same, and so is every number, flag and structure the
cell could branch on. Tensors only count by their place, shape and dtype, so that new weights need no new recording.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    type,
    types.ModuleType,
)
INTERNAL = {
    "_backward_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
}


@dataclass
class Environment:
    """`opaque` keeps alive what the key knows by its address only."""

    parts: list[Hashable] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    opaque: list[Any] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)

    @property
    def key(self) -> Hashable:
        return tuple(self.parts)

    def visit(self, value: Any) -> None:
        if isinstance(value, PLAIN):
            self.parts.append((type(value), value))
            return
        if id(value) in self.seen:
            self.parts.append(("again", self.seen[id(value)]))
            return
        self.seen[id(value)] = len(self.seen)
        if isinstance(value, Tensor):
            self.tensors.append(value)
            self.parts.append(("tensor", value.shape, value.dtype, value.device, value.requires_grad))
            return
        visit = next((VISIT[base] for base in type(value).__mro__ if base in VISIT), Environment.visit_object)
        self.parts.append(type(value))
        visit(self, value)

    def visit_all(self, values: Any) -> None:
        self.parts.append(len(values))
        for value in values:
            self.visit(value)

    def visit_dict(self, value: dict[Any, Any]) -> None:
        self.visit_all(list(value))
        self.visit_all(list(value.values()))

    def visit_function(self, fn: types.FunctionType) -> None:
        self.parts.append(fn.__code__)
        self.visit_all(fn.__defaults__ or ())
        self.visit_dict(fn.__kwdefaults__ or {})
        self.visit_all([cell.cell_contents for cell in fn.__closure__ or () if filled(cell)])
        self.visit_all([fn.__globals__[name] for name in global_names(fn.__code__) if name in fn.__globals__])

    def visit_method(self, method: types.MethodType) -> None:
        self.visit(method.__func__)
        self.visit(method.__self__)

    def visit_partial(self, partial: functools.partial[Any]) -> None:
        self.visit(partial.func)
        self.visit_all(partial.args)
        self.visit_dict(partial.keywords)

    def visit_module(self, module: nn.Module) -> None:
        self.visit_dict({name: value for name, value in module.__dict__.items() if name not in INTERNAL})

    def visit_object(self, value: Any) -> None:
        """An object we know nothing about: itself, and what it shows of its state."""
        self.parts.append(id(value))
        self.opaque.append(value)
        if getattr(type(value), "__module__", "").partition(".")[0] != "torch":
            self.visit_dict(getattr(value, "__dict__", {}))


VISIT: dict[type, Any] = {
    list: Environment.visit_all,
    tuple: Environment.visit_all,
    set: lambda environment, value: environment.visit_all(sorted(value, key=repr)),
    dict: Environment.visit_dict,
    types.FunctionType: Environment.visit_function,
    types.MethodType: Environment.visit_method,
    functools.partial: Environment.visit_partial,
    nn.Module: Environment.visit_module,
}


def environment_of(cell: Any) -> Environment:
    environment = Environment()
    environment.visit(cell)
    return environment


def filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:  # a name the function closes over and nothing has been assigned to yet
        return False
    return True


@functools.lru_cache(maxsize=1024)
def global_names(code: types.CodeType) -> tuple[str, ...]:
    """The names a function, and the functions inside it, look up outside themselves."""
    nested = [
        name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in global_names(constant)
    ]
    return tuple(dict.fromkeys([*code.co_names, *nested]))
