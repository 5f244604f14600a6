"""The class of a feed-forward module whose backward may be a scan: a call goes to `_chains.run` or to PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.jit import ScriptModule

from bppsa import _chains
from bppsa._chain_plans import Options
from bppsa.runtime.untraced import untraced


class Chained(nn.Module):
    """Goes before the module's own class; it finds everything through `self`, so copies and pickles stay whole."""

    _bppsa_path: str = ""
    _bppsa_options: Options
    _bppsa_origin: type[nn.Module]  # in each class that `chained` made: the class that the user sees

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return super().forward(*args, **kwargs)
        return self._eager(args, kwargs)

    @untraced
    def _eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = _chains.run(self, super().forward, args, kwargs)
        return super().forward(*args, **kwargs) if result is NotImplemented else result

    def __reduce_ex__(self, protocol: Any) -> Any:
        origin = type(self).__dict__.get("_bppsa_origin")
        whole = super().__reduce_ex__(protocol)
        return whole if origin is None else (_blank, (origin,), *whole[2:])  # None: somebody derived a class from ours

    def __prepare_scriptable__(self) -> nn.Module:
        """torch.jit.script compiles the source text of a forward, so it gets the module as it was."""
        plain: nn.Module = object.__new__(self._bppsa_origin)
        plain.__dict__.update(self.__dict__)
        return plain


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
        yield from candidates(child, f"{path}.{name}" if path else name)


def is_layer(module: nn.Module) -> bool:
    return not module._modules and type(module).__module__.startswith("torch.nn.modules.")


def suits(module: nn.Module) -> bool:
    """Whether `module` has something to train, a forward of its own, and is called as modules are."""
    if next(module.parameters(), None) is None:
        return False
    own = [name for name in ("forward", *_REPLACED) if name in module.__dict__]
    usual = all(getattr(type(module), name) is getattr(nn.Module, name) for name in _REPLACED)
    return not own and usual and type(module).forward is not nn.Module.forward


def adopt(module: nn.Module, path: str, options: Options) -> None:
    """Give `module`, which must belong to a clone, its rewritten class."""
    cls: type = type(module)
    module.__class__ = chained(cls)
    module.__dict__.update(_bppsa_path=path, _bppsa_options=options)


@functools.cache
def chained(cls: type) -> type:
    """`cls` with `Chained` before it; to a repr, and to tools that ask where a class is from, it looks like `cls`."""
    if issubclass(cls, Chained):
        return cls
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(cls.__name__, (Chained, cls), {**names, "_bppsa_origin": cls})


def _blank(cls: type) -> Any:
    """For pickle and copy: an object of the rewritten `cls` that waits for its state."""
    return object.__new__(chained(cls))
