"""What torch.fx overlooks while it traces.

These are custom backwards, random numbers drawn from no argument, attributes set to what is traced, and helpers of
nn.TransformerEncoder that look at masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import TraceError
from torch.nn import functional as F
from torch.nn.modules import transformer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bppsa.stages import draws

DRAWING = ("normal", "rand", "randint", "randn", "randperm")
HELPERS = ((F, "_canonical_mask"), (F, "_none_or_dtype"), (transformer, "_detect_is_causal_mask"))
CreateProxy = Callable[..., fx.Proxy]


@contextmanager
def recorded(create_proxy: CreateProxy, running: Callable[[], bool]) -> Iterator[None]:
    """Makes nodes of them within the block, except in what runs below a node."""
    apply = torch.autograd.Function.__dict__["apply"]

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return of_proxies(Custom(cls), apply.__get__(None, cls))(*args, **kwargs)

    def of_proxies(function: Callable[..., Any], otherwise: Callable[..., Any] | None = None) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if running() or not any(isinstance(leaf, fx.Proxy) for leaf in tree_leaves((args, kwargs))):
                return (otherwise or function)(*args, **kwargs)
            return create_proxy("call_function", function, args, kwargs)

        return call

    def always(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if running() else create_proxy("call_function", function, args, kwargs)

        return call

    with ExitStack() as stack:
        stack.enter_context(replaced(torch.autograd.Function, "apply", classmethod(applied)))
        stack.enter_context(replaced(nn.Module, "__setattr__", setting(nn.Module.__setattr__)))
        for name in DRAWING:
            stack.enter_context(replaced(torch, name, always(getattr(torch, name))))
        for owner, name in HELPERS:
            stack.enter_context(replaced(owner, name, of_proxies(getattr(owner, name))))
        stack.enter_context(NoDraws(running))
        yield


@dataclass(frozen=True)
class Custom:
    """The call of an autograd.Function, with a name for the code that torch.fx writes."""

    function: Any

    @property
    def __name__(self) -> str:
        return str(self.function.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function.apply(*args, **kwargs)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def setting(before: Callable[..., None]) -> Callable[..., None]:
    """Of an attribute of a module. `self.count += 1` changes a buffer and then sets it to what it is."""

    def set_attribute(module: nn.Module, name: str, value: Any) -> None:
        if not isinstance(value, fx.Proxy):
            before(module, name, value)
        elif value.example is not module._buffers.get(name):
            raise TraceError(
                f"sets the attribute {name} of a {type(module).__name__}, which other stages do not see; keep state in "
                f"buffers, and change them in place"
            )

    return set_attribute


class NoDraws(TorchDispatchMode):
    def __init__(self, running: Callable[[], bool]) -> None:
        super().__init__()
        self.running = running

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.running() and draws(func, args, kwargs or {}):
            raise TraceError("random numbers are drawn from no argument; draw them with torch.rand, randn or rand_like")
        return func(*args, **(kwargs or {}))
