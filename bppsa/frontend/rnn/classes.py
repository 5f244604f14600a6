"""The class of a rewritten nn.RNN, nn.GRU or nn.LSTM: ordinary calls go to `recurrent.run`, all others to PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from bppsa.decisions import Decision
from bppsa.errors import Reason
from bppsa.frontend.clone import clone
from bppsa.frontend.ordinary import unusual_moment
from bppsa.frontend.rewritten import Rewritten, kind_of, put_before, with_before
from bppsa.frontend.rnn import calls, diagnosis, recurrent
from bppsa.frontend.state import state_of
from bppsa.fxpasses.environment.libraries import calls_next_forward
from bppsa.fxpasses.theirs import theirs
from bppsa.plan.forward import SEQUENTIAL, Forward
from bppsa.plan.strategy import AUTO, Strategy
from bppsa.runtime.untraced import untraced

Forwarding = Callable[[Any, Any], Any]


class Recurrent(Rewritten, nn.RNNBase):
    """Goes before the module's own class; it finds everything through `self`, so copies and pickles stay whole."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return super().forward(input, hx)
        return eager(self, super().forward, input, hx)


class RecurrentBehind(Recurrent):
    """Goes behind the user's classes, whose forwards call the next one by `super`."""

    _bppsa_behind = (nn.RNN, nn.GRU, nn.LSTM, nn.RNNBase)


# Functions rather than methods, whose names a class of the user's may have.


@untraced
def eager(module: Recurrent, own: Forwarding, input: Any, hx: Any) -> Any:
    """own: the forward of the module's own class."""
    if getattr(own, "__func__", None) not in FORWARDS:
        leave(module, f"the forward of nn.{module.mode.partition('_')[0]} has been replaced")
        return theirs(own, input, hx)
    if recurrent.is_left_alone(module, input):
        return by_own_forward(module, own, input, hx)
    if reason := unusual_moment():
        leave(module, str(reason))
        return theirs(own, input, hx)
    call = calls.gather(module, input, hx)
    if call is None:
        leave(module, "its tensors are not all plain, dense, on one CPU or GPU and of one dtype that has kernels")
        return by_own_forward(module, own, input, hx)
    run = recurrent.run if call.dtypes is None else torch.autocast("cpu", enabled=False)(recurrent.run)
    result = run(module, call.x, call.batch_sizes, call.states, call.weights)
    return theirs(own, input, hx) if result is NotImplemented else call.deliver(*result)


def leave(module: Recurrent, reason: str) -> None:
    recurrent.noted(module, Decision(state_of(module).path, module.mode.lower(), "pytorch", reason))


def by_own_forward(module: Recurrent, own: Forwarding, input: Any, hx: Any) -> Any:
    """PyTorch's own forward; where it raises over bad input, our error of the same kind says where and what."""
    try:
        return theirs(own, input, hx)
    except tuple(diagnosis.KINDS) as error:
        problem = diagnosis.find(module, input, hx)
        if problem is None:
            raise
        raise diagnosis.named(error, module, problem) from error


_KINDS = (nn.RNN, nn.GRU, nn.LSTM)
FORWARDS = {kind.forward for kind in _KINDS if kind.forward.__module__ == nn.RNNBase.__module__}  # PyTorch's own

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
    is_behind = calls_super(kind_of(module))
    if is_behind and any("__init_subclass__" in vars(base) for base in own_bases(kind_of(module))):
        return Reason(f"{cls.__name__} has an __init_subclass__ of its own, which would run once more")
    for name in _REPLACED:
        if name == "forward" and name not in module.__dict__ and is_behind:
            continue
        if name in module.__dict__ or getattr(cls, name) not in (getattr(kind, name), getattr(Recurrent, name)):
            mend = f"use nn.{kind.__name__}'s to have it rewritten"
            return Reason(f"{cls.__name__} has a {name} of its own", mend=mend)
    return None


def calls_super(cls: type) -> bool:
    """Whether there are forwards before PyTorch's, and each calls the next one by `super`."""
    forwards = [vars(base)["forward"] for base in own_bases(cls) if "forward" in vars(base)]
    return bool(forwards) and all(map(calls_next_forward, forwards))


def own_bases(cls: type) -> list[type]:
    """The classes in which something is looked up before it is in PyTorch's: neither ours nor typing's."""
    before = takewhile(lambda base: base not in RecurrentBehind._bppsa_behind, cls.__mro__)
    return [base for base in before if not issubclass(base, Rewritten) and base.__module__ != "typing"]


def adopt(module: nn.Module, path: str, strategy: Strategy, forward: Forward) -> None:
    """Give `module`, which must belong to a clone, its rewritten class; `why_not` has said None."""
    cls: type = type(module)
    ours = RecurrentBehind if calls_super(kind_of(module)) else Recurrent
    if parametrize.is_parametrized(module):
        # PyTorch made this class for one module; it takes properties off it, and goes back to its base, when asked to
        base = with_before(ours, parametrize.type_before_parametrizations(module))
        module.__class__ = type(cls.__name__, (base,), dict(cls.__dict__))
    else:
        put_before(module, ours)
    state = state_of(module)
    state.path, state.strategy, state.forward = path, strategy, forward
