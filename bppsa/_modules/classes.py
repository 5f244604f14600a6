"""The class of a rewritten nn.RNN, nn.GRU or nn.LSTM: ordinary calls go to `_recurrent.run`, all others to PyTorch."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from bppsa import _recurrent
from bppsa._modules import calls, diagnosis
from bppsa._modules.clone import clone
from bppsa.errors import OURS, Reason
from bppsa.plan.forward import SEQUENTIAL, Forward
from bppsa.plan.strategy import AUTO, Strategy
from bppsa.report import Decision
from bppsa.runtime.newton import Memory
from bppsa.runtime.untraced import untraced


class Recurrent(nn.RNNBase):
    """Goes before the module's own class; it finds everything through `self`, so copies and pickles stay whole."""

    _bppsa_path: str = ""
    _bppsa_strategy: Strategy = AUTO
    _bppsa_forward: Forward = SEQUENTIAL
    _bppsa_memory: Memory  # of Newton's iteration
    _bppsa_left_alone: dict[Any, Any]  # what was decided for calls that PyTorch may run, by their sizes
    _bppsa_origin: type[nn.RNNBase]  # in each class that `rewritten` made: the class that the user sees

    def forward(self, input: Any, hx: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return super().forward(input, hx)
        return self._eager(input, hx)

    @untraced
    def _eager(self, input: Any, hx: Any) -> Any:
        if _recurrent.is_left_alone(self, input):
            return self._unusual(input, hx)
        if not calls.is_ordinary_moment():
            self._leave("a functorch transform, forward-mode AD, a tracer or a mode is active")
            return super().forward(input, hx)
        call = calls.gather(self, input, hx)
        if call is None:
            self._leave("its tensors are not all plain, dense, on one CPU or GPU and of one dtype that has kernels")
            return self._unusual(input, hx)
        run = _recurrent.run if call.dtypes is None else torch.autocast("cpu", enabled=False)(_recurrent.run)
        result = run(self, call.x, call.batch_sizes, call.states, call.weights)
        return super().forward(input, hx) if result is NotImplemented else call.deliver(*result)

    def _leave(self, reason: str) -> None:
        _recurrent.noted(self, Decision(self._bppsa_path, self.mode.lower(), "pytorch", reason))

    def _unusual(self, input: Any, hx: Any) -> Any:
        """PyTorch's own forward; where it raises over bad input, our error of the same kind says where and what."""
        try:
            return super().forward(input, hx)
        except tuple(OURS) as error:
            problem = diagnosis.find(self, input, hx)
            if problem is None:
                raise
            raise diagnosis.named(error, self, problem) from error

    def __reduce_ex__(self, protocol: Any) -> Any:
        origin = type(self).__dict__.get("_bppsa_origin")
        if origin is None:  # somebody derived a class from ours
            return super().__reduce_ex__(protocol)
        return _blank, (origin,), self.__getstate__()

    def __prepare_scriptable__(self) -> nn.Module:
        """torch.jit.script compiles the source text of a forward, so it gets PyTorch's own module."""
        plain: nn.Module = object.__new__(self._bppsa_origin)
        plain.__dict__.update(self.__dict__)
        return plain


_KINDS = (nn.RNN, nn.GRU, nn.LSTM)

# What our forward stands in for. A class or an object with one of these of its own computes something else.
_REPLACED = (
    *("forward", "__call__", "_call_impl", "_wrapped_call_impl", "__getattr__", "__getattribute__"),
    *("check_forward_args", "check_input", "check_hidden_size", "get_expected_hidden_size", "permute_hidden"),
    *("_update_flat_weights", "_weights_have_changed", "_init_flat_weights", "__reduce__", "__reduce_ex__"),
)


def rewrite(
    model: nn.Module, strategy: Strategy = AUTO, forward: Forward = SEQUENTIAL
) -> tuple[nn.Module, dict[str, Decision]]:
    """A clone of `model`, its recurrent modules rewritten; by path of each of them: that it waits for a call, or why it
    was left alone."""
    copy, modules = clone(model)
    found = {}
    for path, module in modules.items():
        if isinstance(module, _KINDS):
            reason = why_not(module)
            if reason is None:
                adopt(module, path, strategy, forward)
            decided = ("waiting", "decided in its first call") if reason is None else ("pytorch", str(reason))
            found[path] = Decision(path, module.mode.lower(), *decided)
    return copy, found


def why_not(module: nn.Module) -> Reason | None:
    """Why `module`, an nn.RNN, nn.GRU or nn.LSTM, keeps its class; None where it can be rewritten."""
    cls, kind = type(module), next(kind for kind in _KINDS if isinstance(module, kind))
    for name in _REPLACED:
        if name in module.__dict__ or getattr(cls, name) not in (getattr(kind, name), getattr(Recurrent, name)):
            mend = f"use nn.{kind.__name__}'s to have it rewritten"
            return Reason(f"{cls.__name__} has a {name} of its own", mend=mend)
    return None


def adopt(module: nn.Module, path: str, strategy: Strategy = AUTO, forward: Forward = SEQUENTIAL) -> None:
    """Give `module`, which must belong to a clone, its rewritten class; `why_not` has said None."""
    cls: type = type(module)
    if parametrize.is_parametrized(module):
        # PyTorch made this class for one module; it takes properties off it, and goes back to its base, when asked to
        base = rewritten(parametrize.type_before_parametrizations(module))
        module.__class__ = type(cls.__name__, (base,), dict(cls.__dict__))
    else:
        module.__class__ = rewritten(cls)
    module.__dict__.update(_bppsa_path=path, _bppsa_strategy=strategy, _bppsa_left_alone={})
    module.__dict__.update(_bppsa_forward=forward, _bppsa_memory=Memory())


@functools.cache
def rewritten(cls: type) -> type:
    """`cls` with `Recurrent` before it; to a repr, and to tools that ask where a class is from, it looks like `cls`."""
    if issubclass(cls, Recurrent):
        return cls
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(cls.__name__, (Recurrent, cls), {**names, "_bppsa_origin": cls})


def _blank(cls: type) -> Any:
    """For pickle and copy: an object of the rewritten `cls` that waits for its state."""
    return object.__new__(rewritten(cls))
