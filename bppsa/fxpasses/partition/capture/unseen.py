"""What a forward does that no graph shows: found by running it once as it is, and told with the user's line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import unwrap
from itertools import starmap
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bppsa.decisions import under
from bppsa.errors import PartitionError
from bppsa.fxpasses.lines import innermost, is_users_frame, place_here
from bppsa.fxpasses.network.models import restore, state_of
from bppsa.fxpasses.partition.call.arguments import Arguments
from bppsa.fxpasses.partition.call.refusals import WHAT_FORWARDS_RAISE, failure, state_changed, untraced
from bppsa.fxpasses.partition.call.transient import Attribute, put_back, transient
from bppsa.fxpasses.partition.capture.contents import are_same
from bppsa.fxpasses.partition.capture.since import LookedUp
from bppsa.fxpasses.partition.capture.watched import STATE, Functions, Watched, generators, is_near, of_model
from bppsa.fxpasses.partition.ops.effects import EffectWatch
from bppsa.fxpasses.replaced import of_pytorch
from bppsa.fxpasses.theirs import raise_if_ours, theirs

GRADIENTS = "Python asks whether a gradient flows to a tensor, which differs from call to call; decide by self.training"
HOOKED = "a hook is registered on an activation, and stages run without it; put what it does into the loss"
DIFFERENTIATES = "the forward differentiates, and stages run it without the autograd graph of the whole; leave it out"
DATA = "a tensor's .data is set, which no op shows; change the tensor in place, under torch.no_grad()"
CLOCK = "the clock is read, and stages would keep the time of when they were made; give it as an argument"
SEEDED = "the random state is set, and stages draw each from their own; set it before the step"
LOST: dict[Any, str] = {
    Tensor.register_hook: HOOKED,
    Tensor.register_post_accumulate_grad_hook: HOOKED,
    Tensor.retain_grad: HOOKED,
    Tensor.backward: DIFFERENTIATES,
    torch.autograd.grad: DIFFERENTIATES,
    Tensor.data.__set__: DATA,  # type: ignore[attr-defined]
}
ASKED = {getattr(Tensor, name).__get__: GRADIENTS for name in ("requires_grad", "grad_fn", "is_leaf", "grad")}
FUNCTIONS: dict[Any, str] = {  # by their code, where they are not built in
    torch.is_grad_enabled: GRADIENTS,
    torch.is_inference_mode_enabled: GRADIENTS,
    **{unwrap(f).__code__: SEEDED for f in (torch.manual_seed, torch.random.seed, torch.set_rng_state)},
    time.time: CLOCK,
    time.perf_counter: CLOCK,
    time.monotonic: CLOCK,
    torch.func.functional_call.__code__: "a module is called with other weights, and stages give it its own; give the "
    "weights to functions of torch.nn.functional",
}


@dataclass(frozen=True)
class WatchedRun:
    """What was seen of a run. result: what the model returned. lengths: the global names of functions that ask for
    `len`. transient: attributes that it sets for itself alone."""

    result: Any
    looked_up: LookedUp
    lengths: tuple[dict[str, Any], ...]
    transient: tuple[Attribute, ...]


def look(model: nn.Module, arguments: Arguments) -> WatchedRun:
    """The model, run on the example.

    Raises PartitionError for what no graph would show.
    """
    args, kwargs = arguments.call(arguments.examples)
    refuse = partial(refused, model)
    functions = Functions({function: partial(refuse, why=why) for function, why in FUNCTIONS.items()})
    attributes = state_of(model)
    watched = [(one, one.read()) for one in (*generators(), *of_model(model))]

    def run() -> Any:
        with torch.no_grad(), EffectWatch():
            return theirs(model, *args, **kwargs)

    try:
        with functions.watched(sys._getframe()), LostCalls(refuse):
            result = run()
    except PartitionError:
        raise
    except WHAT_FORWARDS_RAISE as error:
        raise_if_ours(error)
        raise failure(model, error) from error
    for name, place in functions.rebound.items():
        why = f"the forward binds {name}, a variable of the function around it, anew, {STATE}"
        raise state_changed(model, place, name, why)
    own = transient(model, attributes, run)
    put_back(model, attributes, own)
    for one, before in (*watched, *functions.found):
        if not are_same(one.read(), before):
            once = is_done_once(run, one)
            restore(attributes)
            place, near = line_of(run, one)
            if near or not once:
                why = f"the forward changes {one.what}, {one.mend}"
                raise state_changed(model, place, one.what, why) if one.mend is STATE else untraced(model, place, why)
    looked_up = LookedUp(functions.names(), tuple(functions.outside), frozenset(starmap(under, own)))
    return WatchedRun(result, looked_up, tuple(functions.lengths), own)


def is_done_once(run: Callable[[], Any], one: Watched) -> bool:
    """Whether another run leaves it alone. What libraries prepare in a first call is their affair."""
    before = one.read()
    run()
    return are_same(one.read(), before)


def refused(model: nn.Module, place: str, why: str) -> NoReturn:
    raise untraced(model, place, why)


class LostCalls(TorchFunctionMode):
    """Refuses calls that a graph of ATen ops would lose, and questions whose answers it would keep for good."""

    def __init__(self, refuse: Callable[[str, str], NoReturn]) -> None:
        super().__init__()
        self.refuse = refuse

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func, kwargs = of_pytorch(func), kwargs or {}
        if func in LOST:
            self.refuse(place_here(), LOST[func])
        if func in ASKED and (frame := asking()) is not None:
            self.refuse(innermost([(frame, frame.f_lineno)]), ASKED[func])
        generator = kwargs.get("generator")
        if isinstance(generator, torch.Generator):
            self.refuse(
                place_here(),
                "random numbers are drawn from a generator of the model's own, and micro-batches draw each from "
                "theirs; leave generator= out",
            )
        return theirs(func, *args, **kwargs)


def asking() -> FrameType | None:
    """Who reads an attribute of a tensor, where that is the user's code."""
    frame = sys._getframe(2)
    return frame if is_users_frame(frame) else None


def line_of(run: Callable[[], Any], one: Watched) -> tuple[str, bool]:
    """The line that changes it, and whether it is the user's own: the model runs again, and is asked after each."""
    before = one.read()
    last: tuple[str, bool] = "", True
    found: tuple[str, bool] | None = None

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal last, found
        if found or not is_users_frame(frame):
            return None
        if not are_same(one.read(), before):
            found = last
            return None
        last = innermost([(frame, frame.f_lineno)]), is_near(frame)
        return trace

    earlier = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(earlier)
    return found or last
