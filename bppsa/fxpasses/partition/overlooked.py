"""What torch.fx overlooks while it traces: random numbers that are drawn from no argument, and custom backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx
from torch.fx.proxy import TraceError
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bppsa.fxpasses.partition.effects import draws

DRAWING = ("normal", "rand", "randint", "randn", "randperm")
CreateProxy = Callable[..., fx.Proxy]


@contextmanager
def recorded(create_proxy: CreateProxy, running: Callable[[], bool]) -> Iterator[None]:
    """Makes nodes of them within the block, except in what runs below a node."""
    apply = torch.autograd.Function.__dict__["apply"]

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        call = apply.__get__(None, cls)
        if running() or not any(isinstance(leaf, fx.Proxy) for leaf in tree_leaves((args, kwargs))):
            return call(*args, **kwargs)
        return create_proxy("call_function", call, args, kwargs)

    def always(factory: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            return factory(*args, **kwargs) if running() else create_proxy("call_function", factory, args, kwargs)

        return make

    with ExitStack() as stack:
        stack.enter_context(replaced(torch.autograd.Function, "apply", classmethod(applied)))
        for name in DRAWING:
            stack.enter_context(replaced(torch, name, always(getattr(torch, name))))
        stack.enter_context(NoDraws(running))
        yield


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class NoDraws(TorchDispatchMode):
    def __init__(self, running: Callable[[], bool]) -> None:
        super().__init__()
        self.running = running

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.running() and draws(func, args, kwargs or {}):
            raise TraceError("random numbers are drawn from no argument; draw them with torch.rand, randn or rand_like")
        return func(*args, **(kwargs or {}))
