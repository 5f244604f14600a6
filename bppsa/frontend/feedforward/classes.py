"""The class of a feed-forward module whose backward may be a scan: a call goes to `chains.run` or to PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.jit import ScriptModule

from bppsa.decisions import under
from bppsa.frontend.feedforward import chains
from bppsa.frontend.rewritten import Rewritten, put_before
from bppsa.frontend.state import state_of
from bppsa.plan.chain_options import ChainOptions
from bppsa.runtime.untraced import untraced


class Chained(Rewritten):
    """Goes before the module's own class; it finds everything through `self`, so copies and pickles stay whole."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return super().forward(*args, **kwargs)
        return eager(self, super().forward, args, kwargs)


@untraced
def eager(module: Chained, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """own: the forward of the module's own class."""
    result = chains.run(module, own, args, kwargs)
    return own(*args, **kwargs) if result is NotImplemented else result


# What our forward stands in for, or has to go through. An object with one of these of its own does something else.
_REPLACED = ("__call__", "_call_impl", "_wrapped_call_impl", "__reduce__", "__reduce_ex__")


def candidates(model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The largest modules without a recurrent one in them, by path; a module that is a single layer is no chain."""
    if isinstance(model, ScriptModule) or is_layer(model):
        return
    if not any(isinstance(module, nn.RNNBase) for module in model.modules()) and suits(model):
        yield path, model
        return
    for name, child in model.named_children():
        yield from candidates(child, under(path, name))


def is_layer(module: nn.Module) -> bool:
    return not module._modules and type(module).__module__.startswith("torch.nn.modules.")


def suits(module: nn.Module) -> bool:
    """Whether `module` has something to train, a forward of its own, and is called as modules are."""
    if next(module.parameters(), None) is None:
        return False
    own = [name for name in ("forward", *_REPLACED) if name in module.__dict__]
    usual = all(getattr(type(module), name) is getattr(nn.Module, name) for name in _REPLACED)
    return not own and usual and type(module).forward is not nn.Module.forward


def adopt(module: nn.Module, path: str, options: ChainOptions) -> None:
    """Give `module`, which must belong to a clone, its rewritten class."""
    put_before(module, Chained)
    state = state_of(module)
    state.path, state.options = path, options
