"""The class of a module that has a loop."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from bppsa.frontend import call_log
from bppsa.frontend.call_log import collecting, explaining, note
from bppsa.frontend.loops.call import call
from bppsa.frontend.loops.outlined import Outlines, in_place_of
from bppsa.frontend.loops.state import LoopState
from bppsa.frontend.rewritten import Rewritten
from bppsa.frontend.state import TABLES, is_compiled, show, state_of
from bppsa.frontend.trials import entered, is_entered, is_tried
from bppsa.fxpasses.environment.libraries import is_users_name
from bppsa.fxpasses.reroll.log.lines import loops
from bppsa.fxpasses.reroll.outline.wrappers import wrapped_codes
from bppsa.runtime.untraced import untraced


class Looped(Rewritten):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        plain = super().forward
        if torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        with reporting(self), entered(state_of(self).loops):
            return run(self, plain, args, kwargs)


@contextmanager
def reporting(module: nn.Module, *, only_decisions: bool = False) -> Iterator[None]:
    """What is decided within is in the report of a compiled model, unless it is in a call of it already.
    only_decisions: where nothing is decided the report stays that of the call before."""
    if not is_compiled(module) or call_log.is_called(module):
        yield
        return
    before = state_of(module).report
    call_log.begin(module)
    try:
        yield
    finally:
        call_log.pop()
        report = state_of(module).report
        if only_decisions and before is not None and report is not None and report.decisions == state_of(module).left:
            show(module, before)


def run(module: Looped, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    state: LoopState = state_of(module).loops
    if state.outlined is None and state.is_in_vain:
        state.outlined = outlined(module)
    if not state.outlined:
        return call(module, plain, state, args, kwargs)
    with collecting(explained=explaining()) as taken:
        result = around_loops(plain, state.outlined)(*args, **kwargs)
    if not any(decision.kind == "loop" for decision in taken):
        note(*state.last.decisions)
    return result


def around_loops(plain: Any, made: Mapping[Any, FunctionType]) -> Callable[..., Any]:
    """plain: a method, or a function of a class. With its loops as calls of their own, where there is such a one."""
    function = made.get(getattr(plain, "__func__", plain))
    found: Callable[..., Any] = plain if function is None else in_place_of(plain, function)
    return found


@untraced
def outlined(module: Looped) -> dict[Any, FunctionType]:
    """Each method as it is, and with its loops, and those of what it calls, as calls of their own."""
    kind, state = module._bppsa_origin, state_of(module).loops
    outlines = Outlines(state, [kind, *kinds_of_objects(module)])
    own = [getattr(each, "__func__", each) for each in functions(kind).values()]
    found = {function: outlines.of(function) for function in own}
    made = {function: other for function, other in found.items() if other is not None}
    state.wholes = wholes(kind, made)
    return made


def kinds_of_objects(module: nn.Module) -> set[type]:
    """Classes of the user's of which it holds objects."""
    found = {type(value) for name, value in vars(module).items() if name not in TABLES}
    return {kind for kind in found if is_users_name(kind.__module__)}


def wholes(kind: type, made: Mapping[Any, FunctionType]) -> frozenset[FunctionType]:
    """Methods that lead to a loop of another, or of their own, that is no call of its own."""
    own = {name: getattr(each, "__func__", each) for name, each in functions(kind).items()}
    names = leading_to(kind, {name for name in methods(kind) if own[name] not in made})
    plain = {own[name] for name in names if not inspect.isgeneratorfunction(own[name])}
    return frozenset(plain - made.keys())


def methods(kind: type) -> dict[str, Any]:
    """Methods and static methods that have a loop, or a decorator around such a function, of a user's class."""
    own = functions(kind)
    return {name: each for name, each in own.items() if any(map(loops, codes_of(each)))}


def codes_of(method: Any) -> Iterator[CodeType]:
    return wrapped_codes(getattr(method, "__func__", method))


def functions(kind: type) -> dict[str, Any]:
    names = [name for base in kind.__mro__ if is_class_of_users(base) for name in vars(base)]
    found = {name: inspect.getattr_static(kind, name) for name in names}
    return {name: each for name, each in found.items() if isinstance(getattr(each, "__func__", each), FunctionType)}


def is_class_of_users(cls: type) -> bool:
    return cls is not object and cls.__module__.partition(".")[0] not in ("torch", "bppsa")


def leading(kind: type) -> set[str]:
    """Names of methods that call one with a loop: a user may call them in the place of the model."""
    return leading_to(kind, set(methods(kind)))


def leading_to(kind: type, found: set[str]) -> set[str]:
    """Names of methods that call one of these, or are one."""
    named = {name: {n for code in codes_of(each) for n in code.co_names} for name, each in functions(kind).items()}
    grew = True
    while grew:
        before = len(found)
        found |= {name for name, names in named.items() if not found.isdisjoint(names)}
        grew = len(found) > before
    return {name for name in found if name == "__call__" or not hasattr(nn.Module, name)}


def prepare(cls: Any) -> None:
    """Have a class that was made of `Looped` show the signature of its user's forward, for which libraries ask, and
    run methods as they are outlined where that is asked for."""
    if "forward" in vars(cls):
        return

    @functools.wraps(cls._bppsa_origin.forward)
    def forward(self: Looped, *args: Any, **kwargs: Any) -> Any:
        return Looped.forward(self, *args, **kwargs)

    cls.forward = forward
    own = functions(cls._bppsa_origin)
    for name in leading(cls._bppsa_origin):
        if isinstance(own[name], FunctionType):
            setattr(cls, name, dispatching(name, own[name]))
        elif isinstance(own[name], staticmethod):
            setattr(cls, name, Static(name))


def dispatching(name: str, method: FunctionType) -> Callable[..., Any]:
    @functools.wraps(method)
    def dispatched(self: Looped, *args: Any, **kwargs: Any) -> Any:
        return called(self, getattr(super(Looped, self), name), *args, **kwargs)

    return dispatched


class Static:
    """A static method, which knows its module where it is called on one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, module: Looped | None, kind: type[Looped]) -> Any:
        if module is None:
            return getattr(super(Looped, kind), self.name)
        plain = getattr(super(Looped, module), self.name)
        return functools.wraps(plain)(functools.partial(called, module, plain))


def called(module: Looped, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """One call of a method that a user, or forward, has made."""
    state: LoopState = state_of(module).loops
    if torch.compiler.is_compiling() or is_tried():
        return plain(*args, **kwargs)
    if state.outlined is not None:
        made = state.outlined
    elif is_entered(state):
        made = {}
    else:
        made = state.methods = outlined(module) if state.methods is None else state.methods
    function = getattr(plain, "__func__", plain)
    is_looked_at = state.outlined is not None or not is_entered(state)
    with reporting(module, only_decisions=True):
        if is_looked_at and function in state.wholes:
            return call(plain, plain, state.part(function, is_part=False), args, kwargs)
        return around_loops(plain, made)(*args, **kwargs)
