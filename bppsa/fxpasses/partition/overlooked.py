"""What torch.fx overlooks while it traces.

These are custom backwards, random numbers drawn from no argument, attributes set to what is traced, questions for the
class of a value or for its rows, and functions of PyTorch's that look into what they are given.
"""

from __future__ import annotations

import builtins
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError
from torch.nn import functional as F
from torch.nn.modules import transformer
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bppsa.fxpasses.partition.places import is_users, place_here
from bppsa.fxpasses.partition.traced import Traced
from bppsa.stages import draws

MAKING = ("new_empty", "new_full", "new_ones", "new_zeros")  # methods, here of a Parameter, of sizes that are traced
DRAWING = ("normal", "rand", "randint", "randn", "randperm")
HELPERS = (
    *((F, "_canonical_mask"), (F, "_none_or_dtype"), (transformer, "_detect_is_causal_mask")),
    *((torch, "finfo"), (torch, "iinfo")),
)
MISSING = object()
CreateProxy = Callable[..., fx.Proxy]
Running = Callable[[], bool]


@contextmanager
def recorded(model: nn.Module, create_proxy: CreateProxy, running: Running) -> Iterator[None]:
    """Makes nodes of them within the block, except where `running` tells that what is called is no part of the graph.

    What is replaced for this is the process's: one thread at a time, and `running` is to be true for all others.
    """
    apply = torch.autograd.Function.__dict__["apply"]

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is checkpoint.CheckpointFunction and not running():
            return without_recomputation(*args)
        return of_proxies(Custom(cls), apply.__get__(None, cls))(*args, **kwargs)

    def of_proxies(
        function: Callable[..., Any], otherwise: Callable[..., Any] | None = None, method: str = ""
    ) -> Callable[..., Any]:
        node = ("call_method", method) if method else ("call_function", function)

        def call(*args: Any, **kwargs: Any) -> Any:
            if running() or not any(isinstance(leaf, fx.Proxy) for leaf in tree_leaves((args, kwargs))):
                return (otherwise or function)(*args, **kwargs)
            return create_proxy(*node, args, kwargs)

        return call

    def always(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if running() else create_proxy("call_function", function, args, kwargs)

        return call

    replacements: list[tuple[Any, str, Any]] = [
        (torch.autograd.Function, "apply", classmethod(applied)),
        (checkpoint, "_checkpoint_without_reentrant_generator", inline(running)),
        (nn.Module, "__setattr__", setting(model, running)),
        (builtins, "isinstance", by_example(isinstance)),
        (builtins, "len", of_rows(len)),
        (torch, "is_tensor", lambda value: isinstance(value.example if type(value) is Traced else value, Tensor)),
        *((torch, name, always(getattr(torch, name))) for name in DRAWING),
        *((Tensor, name, of_proxies(getattr(Tensor, name), method=name)) for name in MAKING),
        *((owner, name, of_proxies(getattr(owner, name))) for owner, name in HELPERS),
    ]
    with ExitStack() as stack:
        for owner, name, value in replacements:
            stack.enter_context(replaced(owner, name, value))
        stack.enter_context(NoDraws(running))
        yield


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    inherited = name not in owner.__dict__
    before = None if inherited else owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@dataclass(frozen=True)
class Custom:
    """The call of an autograd.Function, with a name for the code that torch.fx writes."""

    function: Any

    @property
    def __name__(self) -> str:
        return str(self.function.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function.apply(*args, **kwargs)


def inline(running: Running) -> Callable[..., Iterator[None]]:
    """In the place of a generator that runs what is checkpointed between its two steps."""
    before = checkpoint._checkpoint_without_reentrant_generator

    def generator(*args: Any, **kwargs: Any) -> Iterator[None]:
        if running():
            yield from before(*args, **kwargs)
        else:
            say_not_recomputed()
            yield

    return generator


def without_recomputation(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
    say_not_recomputed()
    return function(*args)


def say_not_recomputed() -> None:
    warnings.warn(
        f"{place_here()}: stages keep activations that torch.utils.checkpoint would compute again; take more "
        f"micro-batches where memory is short, or make the checkpointed module a layer of torch.nn's",
        stacklevel=2,
    )


def by_example(before: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """`isinstance`, which in the user's code asks for the class that the value has for the example."""

    def is_instance(value: Any, classes: Any) -> bool:
        if type(value) is Traced and is_users(sys._getframe(1)):
            return before(value.example, classes)
        return before(value, classes)

    return is_instance


def of_rows(before: Callable[[Any], int]) -> Callable[[Any], Any]:
    """`len`, which in the user's code asks a tensor for its rows."""

    def length(value: Any) -> Any:
        if type(value) is Traced and isinstance(value.example, Tensor) and is_users(sys._getframe(1)):
            return value.size(0)
        return before(value)

    return length


def setting(model: nn.Module, running: Running) -> Callable[..., None]:
    """Of an attribute of a module of the model: stages do not see what others set. What is set to what it is, as by
    `self.count += 1` of a buffer or `self.table = self.table.to(x.device)`, is no change."""
    own = {id(module) for module in model.modules()}
    before = nn.Module.__setattr__

    def set_attribute(module: nn.Module, name: str, value: Any) -> None:
        new = value.example if type(value) is Traced else value
        if running() or id(module) not in own or name == "training":
            before(module, name, value)
        elif new is not attributes(module).get(name, MISSING):
            raise TraceError(
                f"the forward sets the attribute {name} of a {type(module).__name__}, which other stages and the next "
                f"micro-batch do not see; make it in __init__, as a buffer, and change that in place"
            )

    return set_attribute


def attributes(module: nn.Module) -> dict[str, Any]:
    """As they are, where getattr would give what stands for them in the graph."""
    return {**module.__dict__, **module._parameters, **module._buffers, **module._modules}


class NoDraws(TorchDispatchMode):
    def __init__(self, running: Running) -> None:
        super().__init__()
        self.running = running

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.running() and draws(func, args, kwargs or {}):
            raise TraceError("random numbers are drawn from no argument; draw them with torch.rand, randn or rand_like")
        return func(*args, **(kwargs or {}))
