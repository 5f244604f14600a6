"""TorchDynamo captures a module's forward as one graph, with guards, side effects, modes and random numbers.

It is asked for whole graphs alone. A forward that it cannot capture as one (a branch that depends on values, a print)
is Python's, and the parts of the module are captured one by one.

Each module has a code object of its own for Dynamo to compile, so its graphs, and their limit, are its own and go when
it goes. Nothing but that code is compiled, whatever runs within it.
"""

from __future__ import annotations

import itertools
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import fx, nn

from bppsa.errors import Reason, Unsupported, first_line
from bppsa.frontend.pruned.capture.met import meeting
from bppsa.frontend.pruned.capture.refusals import part, refusing
from bppsa.frontend.pruned.masking.state import Capture, pruned_state
from bppsa.frontend.pruned.regions.graph import DynamoGraph
from bppsa.fxpasses.lines import is_users, shown
from bppsa.fxpasses.theirs import RELEASE, is_ours, theirs

CAPTURES = (2, 13)  # the torch whose Dynamo does: others have other options and graphs
MOST_GRAPHS = 32  # of a module: for its modes, flags and dtypes, and for numbers that its forward branches on
MOST_SECONDS = 60.0  # of a module, for all of its graphs
OPTIONS = {
    "skip_nnmodule_hook_guards": False,  # a hook that is added later runs
    "allow_unspec_int_on_nn_module": True,  # a counter of calls is an input, not a graph for each number
    "use_numpy_random_stream": True,  # numpy's own numbers, or no graph
    "optimize_ddp": False,  # a graph within DDP is no different
    "automatic_dynamic_local_pgo": False,  # what other processes have seen
    "automatic_dynamic_remote_pgo": False,
}

CapturedCall = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]
_numbers = itertools.count()


class NotCaptured(Unsupported):
    """Nothing of the forward has run."""


def entry(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return module._bppsa_plain(*args, **kwargs)


def is_available() -> bool:
    return RELEASE == CAPTURES


def captured() -> CapturedCall:
    """The forward of one module. Its first call captures it, which takes seconds if it is the first in the process.

    Raises NotCaptured where it cannot be captured.
    """
    code = entry.__code__.replace(co_name=f"{entry.__name__}_{next(_numbers)}")  # by its name Dynamo keeps sizes seen
    compiled: CapturedCall = dynamo()(types.FunctionType(code, globals()))
    weakref.finalize(compiled, forget, code).atexit = False
    return compiled


def forget(code: types.CodeType) -> None:
    """What Dynamo keeps of a code object, and with it all graphs, in tables of its own."""
    from torch._C._dynamo import eval_frame
    from torch._dynamo import pgo, utils

    eval_frame.reset_code(code)
    utils.guard_failures.pop(code, None)
    sizes = pgo.get_code_state()
    for key in [key for key in list(sizes) if key.name == code.co_name]:
        del sizes[key]


@cache
def dynamo() -> Any:
    """One context for all modules, as Dynamo keeps every backend for ever."""
    import torch._dynamo

    context: Any = torch._dynamo.optimize(backend, nopython=True, recompile_limit=MOST_GRAPHS)
    context.callback = Conversion(context.callback)
    return context


def backend(module: fx.GraphModule, example_inputs: Any) -> DynamoGraph:
    return DynamoGraph(module.graph)


def is_entry(code: types.CodeType) -> bool:
    return code.co_filename == entry.__code__.co_filename and code.co_firstlineno == entry.__code__.co_firstlineno


class Conversion:
    """What Dynamo does with a frame that it has no graph for yet."""

    def __init__(self, convert: Any) -> None:
        self._torchdynamo_orig_backend = self.convert = convert

    def __call__(self, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        from torch._dynamo import convert_frame
        from torch._dynamo.types import ConvertFrameReturn

        if not is_entry(frame.f_code):
            return ConvertFrameReturn(apply_to_code=False)
        module = frame.f_locals["module"]
        try:
            with convert_frame.compile_lock, options(), timed(module) as capture, refusing(module) as refused:
                with meeting() as met:
                    converted = self.graph_of(refused, frame, cache_entry, frame_state)
                capture.names.watch(met)
                return converted
        except Unsupported as error:
            raise NotCaptured(error.reason) from None

    def graph_of(self, refused: list[Exception], *frame: Any) -> Any:
        """What Dynamo makes of a forward. Raises Unsupported where it makes nothing of it, or should not have."""
        from torch._dynamo import exc

        try:
            converted = theirs(self.convert, *frame)
            if refused:
                raise refused[0]
            return converted
        except exc.FailOnRecompileLimitHit:
            what = f"more than {MOST_GRAPHS} graphs, for flags and numbers that its forward branches on"
            raise Unsupported(what) from None
        except exc.BackendCompilerFailed as error:
            if isinstance(error.inner_exception, Unsupported):
                raise error.inner_exception from None
            raise
        except (exc.TorchDynamoException, AssertionError, IndexError) as error:  # it wraps all but the latter two
            if is_ours(error) and not isinstance(error, exc.Unsupported):  # which `refusals` raise
                raise
            raise Unsupported(reason_of(error)) from None


@contextmanager
def options() -> Iterator[None]:
    """Raises Unsupported where one of ours is missing."""
    from torch._dynamo import config

    for name in OPTIONS:
        part(config.__name__, name)
    with config.patch(OPTIONS):
        yield


# What Dynamo says, as a user would.
IN_WORDS = {
    "Attempted to wrap RNN, GRU, or LSTM": "Dynamo takes in no nn.RNN, nn.GRU or nn.LSTM; its parts are captured",
}


def reason_of(error: Any) -> Reason:
    """What Dynamo could not capture, with the user's line."""
    stack = [f for f in getattr(error, "real_stack", None) or () if is_users(f.filename)]
    place = f"{shown(stack[-1].filename, stack[-1].lineno, stack[-1].line)}: " if stack else ""
    told = first_line(error)
    return Reason(f"{place}its forward cannot be captured: {IN_WORDS.get(told, told)}")


@contextmanager
def timed(module: Any) -> Iterator[Capture]:
    """What is known of the graphs of `module`. Raises Unsupported where they have taken too long."""
    capture = pruned_state(module).capture
    assert capture is not None
    if capture.seconds > MOST_SECONDS:
        raise Unsupported(f"its graphs took {capture.seconds:.0f} s to capture")
    begun = time.perf_counter()
    try:
        yield capture
    finally:
        capture.seconds += time.perf_counter() - begun
