"""What a call does that a log of ops cannot tell: looked for while it is logged, and refused with the user's line.

A function mode sees calls of tensors that hand out values or change gradients. A profile sees which C functions and
which parts of libraries the user's code calls: what is not known to be without effects and to depend on its arguments
alone is refused. What code has changed is found by comparing before and after.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bppsa.common.graph import tensors_in
from bppsa.errors import Reason
from bppsa.fxpasses.environment.harmless import BUILTINS, CONTAINERS
from bppsa.fxpasses.environment.libraries import homes_of, is_users_name, owner
from bppsa.fxpasses.lines import innermost, is_users_frame, place_here
from bppsa.fxpasses.partition.capture.contents import are_same
from bppsa.fxpasses.partition.capture.unseen import asking
from bppsa.fxpasses.partition.capture.watched import (
    Functions,
    Watched,
    generators,
    generators_in,
    line_of_change,
    of_model,
)
from bppsa.fxpasses.recording.one_hot import one_hot
from bppsa.fxpasses.recording.refused import REFUSED
from bppsa.fxpasses.replaced import of_pytorch
from bppsa.fxpasses.reroll.log.memory import LIVES_ON
from bppsa.fxpasses.reroll.log.numbers import Arithmetic, is_reader, may_read
from bppsa.fxpasses.theirs import theirs

Refuse = Callable[[Reason, str], None]


class GradientPolicy(Protocol):
    """Tells what a call may do to gradients and tensors: what stays within it."""

    def may_begin(self, tensor: Tensor, wanted: bool = True) -> bool:
        """Whether a tensor may be made to require a gradient, which is noted."""

    def may_differentiate(self) -> bool:
        """Whether gradients may be taken."""

    def is_own(self, tensor: Tensor) -> bool:
        """Whether the call has made it."""


IN_EVERY_CALL = "do it outside of the loop"
INTO_OUT = Reason("writes into out=", mend="use what it returns")
GRADIENT = Reason("asks for or changes a gradient, a tensor's data or its memory", mend=IN_EVERY_CALL)
UNKNOWN = Reason("calls a function that may have effects, or another result in another call", mend=IN_EVERY_CALL)
LIBRARY = Reason("calls a library whose effects are not known", mend=IN_EVERY_CALL)
DRAWN_BEFORE = "draw a tensor of them before the loop, and choose with torch.where"
RANDOM = Reason("draws Python's random numbers, others in each call", mend=DRAWN_BEFORE)
HISTORY = Reason("asks where a tensor is from, which no kind of call tells", mend="decide by an argument")
OF_HISTORY = {
    *(getattr(Tensor, name).__get__ for name in ("grad_fn", "is_leaf", "_base", "output_nr", "retains_grad")),
    *(Tensor._is_view, Tensor.storage_offset),
}
OF_GRADIENT = {getattr(Tensor, name).__get__ for name in ("grad", "_version")}
ASKED = {*OF_HISTORY, *OF_GRADIENT, Tensor.untyped_storage}  # also by what watches
BEGINS = {Tensor.requires_grad_, Tensor.requires_grad.__set__}  # type: ignore[attr-defined]
LOST: dict[Any, Reason] = {
    **REFUSED,
    Tensor.detach_: Reason("detaches a tensor in place", mend="use h = h.detach()"),
    **dict.fromkeys(
        (
            *(Tensor.requires_grad_, Tensor.register_post_accumulate_grad_hook, Tensor.set_),
            *(Tensor.untyped_storage, Tensor.storage, Tensor.resize_, Tensor.share_memory_, Tensor.record_stream),
            *OF_GRADIENT,
            *(getattr(Tensor, name).__set__ for name in ("grad", "data", "requires_grad")),
        ),
        GRADIENT,
    ),
    **dict.fromkeys(OF_HISTORY, HISTORY),
}
OF_PYTHON = {"math", "cmath", "_operator", "itertools", "_functools", "_collections", "_abc", "_weakref", "_typing"}
OF_CONTAINERS = ("iterator", "generator", "dict_keys", "dict_items")
LIBRARIES = {
    *("abc", "collections", "contextlib", "copy", "dataclasses", "enum", "functools", "itertools", "math", "numbers"),
    *("operator", "types", "typing", "_weakrefset", "weakref", "fractions", "string", "re"),
    *("torch", "bppsa", "einops", "jaxtyping", "numpy", "importlib", "typing_extensions"),
}
OF_NAMED_TUPLES = "namedtuple_"  # what Python calls the module of what makes one
# Modules of torch's whose functions have effects that no op shows.
WITH_EFFECTS = (
    *("torch.random", "torch.serialization", "torch.distributed", "torch.multiprocessing", "torch.hub"),
    *("torch.utils.tensorboard", "torch.autograd.graph", "torch.utils.data", "torch.utils.checkpoint", "torch.cuda"),
    *("collections.abc", "torch._tensor_str", "torch.utils.cpp_extension", "torch.futures", "torch.nn.parallel"),
)


class UnseenCalls(TorchFunctionMode):
    """Notes calls that ops do not show, or show without their purpose."""

    def __init__(self, refuse: Refuse, arithmetic: Arithmetic, policy: GradientPolicy) -> None:
        super().__init__()
        self.refuse, self.arithmetic, self.policy = refuse, arithmetic, policy

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func, kwargs = of_pytorch(func), kwargs or {}
        if func in BEGINS:
            is_lost = not self.policy.may_begin(*args, **kwargs)
        else:
            is_lost = func in LOST and not (func is torch.autograd.grad and self.policy.may_differentiate())
        if is_lost and (func not in ASKED or asking() is not None):
            reason = LOST[func]
            self.refuse(Reason(reason.what, getattr(func, "__name__", str(func)), reason.mend), place_here())
        if kwargs.get("generator") is not None:
            self.refuse(Reason("draws from a generator of its own", mend="use the default one"), place_here())
        if kwargs.get("out") is not None:
            is_own = all(map(self.policy.is_own, tensors_in(kwargs["out"])))
            self.refuse(INTO_OUT if is_own else Reason(LIVES_ON, "out=", mend=IN_EVERY_CALL), place_here())
        if func is functional.one_hot:
            found = theirs(one_hot, *args, **kwargs)
            return theirs(func, *args, **kwargs) if found is NotImplemented else found
        if not self.arithmetic.is_followed:
            return theirs(func, *args, **kwargs)
        with self.arithmetic.handing(func, args, kwargs):
            return theirs(func, *args, **kwargs)


class CalledFunctions(Functions):
    """What the user's functions call. homes: the packages whose functions are looked into, whoever installed them."""

    def __init__(self, homes: frozenset[str], refuse: Refuse, arithmetic: Arithmetic) -> None:
        super().__init__({})
        self.homes, self.refuse, self.arithmetic = homes, refuse, arithmetic
        self.near: dict[CodeType, bool] = {}

    def event(self, frame: FrameType, event: str, arg: Any) -> None:
        near = self.near.get(frame.f_code)  # first, as most events are of frames that are known to be torch's
        if near is None:
            near = self.is_near(frame)
        if near:
            self.of_users(frame, event, arg)
        elif event == "call" and frame.f_back is not None:
            of_seeds = frame.f_globals.get("__name__") == "torch.random"
            if of_seeds or self.is_near(frame.f_back):
                self.check_library(frame, frame.f_back)

    def of_users(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            if self.arithmetic.is_followed:
                self.arithmetic.looked = is_reader(arg)
            if not is_known(arg):
                name = getattr(arg, "__qualname__", str(arg))
                of_random = isinstance(getattr(arg, "__self__", None), random.Random)
                self.told(RANDOM if of_random else UNKNOWN, name, frame)
            return
        if event == "call":
            self.check_numpy(frame)
            if self.arithmetic.is_followed:
                self.arithmetic.looked = may_read(frame.f_code, frame.f_globals)
        super().event(frame, event, arg)

    def is_near(self, frame: FrameType) -> bool:
        code = frame.f_code
        found = self.near.get(code)
        if found is None:
            name = str(frame.f_globals.get("__name__", ""))
            own = is_users_name(name) or name.partition(".")[0] in self.homes
            generated = code.co_filename == "<string>"  # as a dataclass's methods are
            found = self.near[code] = own and (generated or is_users_frame(frame))
        return found

    def check_library(self, frame: FrameType, back: FrameType) -> None:
        name = str(frame.f_globals.get("__name__", ""))
        of_tuple = name.startswith(OF_NAMED_TUPLES)
        if not of_tuple and (name.partition(".")[0] not in LIBRARIES or name.startswith(WITH_EFFECTS)):
            self.told(RANDOM if name == "random" else LIBRARY, f"{name}.{frame.f_code.co_name}", back)

    def check_numpy(self, frame: FrameType) -> None:
        """numpy's functions are not seen: its random numbers are looked for by name."""
        if draws_with_numpy(frame.f_code, frame.f_globals):
            self.told(Reason("names numpy's random numbers", mend=DRAWN_BEFORE), "", frame)

    def told(self, reason: Reason, op: str, frame: FrameType) -> None:
        self.refuse(replace(reason, op=op), innermost([(frame, frame.f_lineno)]))


def is_known(function: Any) -> bool:
    """Whether a C function is known to do nothing but return something of its arguments."""
    if not isinstance(function, BuiltinFunctionType):
        return True
    owner = function.__self__
    if owner is None or isinstance(owner, ModuleType):
        module = str(getattr(function, "__module__", None) or getattr(owner, "__name__", ""))
        if module == "builtins":
            return function in BUILTINS
        return module.partition(".")[0] == "torch" or module in OF_PYTHON
    kind = owner if isinstance(owner, type) else type(owner)
    return kind in CONTAINERS or kind.__module__.partition(".")[0] == "torch" or is_of_containers(kind)


@lru_cache(maxsize=1024)
def is_of_containers(kind: type) -> bool:
    """Generators, iterators over containers, views of them; the methods that classes inherit from `object`. `apply` of
    a torch.autograd.Function, in C from torch 2.14 on, calls a forward that is watched itself."""
    if issubclass(kind, (Tensor, nn.Module, torch.autograd.Function, list, dict, tuple, set)):
        return True
    return kind.__module__ == "builtins" and kind.__name__.endswith(OF_CONTAINERS)


def draws_with_numpy(code: CodeType, names: dict[str, Any]) -> bool:
    numpy = [names.get(name) for name in code.co_names if name in names]
    if any(isinstance(each, ModuleType) and each.__name__ == "numpy" for each in numpy) and "random" in code.co_names:
        return True
    return any((getattr(each, "__module__", None) or "").startswith("numpy.random") for each in numpy)


@contextmanager
def watched(
    root: Any, refuse: Refuse, held: Sequence[Any], arithmetic: Arithmetic, policy: GradientPolicy
) -> Iterator[None]:
    """Refuses what the block does beside ops; the comparison is made when it is over. held: what it can reach, and
    nothing but its address is known of. policy: what may be done to gradients."""
    calls, module = CalledFunctions(homes_of(root), refuse, arithmetic), owner(root)
    of_module = of_model(module) if isinstance(module, nn.Module) else []
    state = [(one, one.read()) for one in (*generators(), *generators_in(held), *of_module)]
    with calls.watched(sys._getframe(2)), UnseenCalls(refuse, arithmetic, policy):
        yield
    for name, place in calls.rebound.items():
        refuse(Reason(f"binds {name}, a variable of the function around it, anew", mend=IN_EVERY_CALL), place)
    for one, then in (*state, *calls.found):
        if not are_same(one.read(), then):
            refuse(changed(one), line_of_change(calls.codes, one.what))


def changed(one: Watched) -> Reason:
    return Reason(f"changes {one.what}", mend=IN_EVERY_CALL)
