"""Which line of the user's code each op of an exported graph comes from, and which call of torch.utils.checkpoint.

Export itself notes the lines of forwards only, and not of functions that these call.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any

from torch import fx
from torch.fx import traceback
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from bppsa.fxpasses.lines import innermost
from bppsa.fxpasses.replaced import of_pytorch
from bppsa.fxpasses.theirs import theirs

PLACE, RECOMPUTED = "bppsa_place", "bppsa_recomputed"


class Lines(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = of_pytorch(func)
        if asks(func):
            return theirs(func, *args, **(kwargs or {}))
        with noted():
            return theirs(func, *args, **(kwargs or {}))


# Properties of tensors that are ops, as a size may be. All others, and these methods, make no node; export calls them
# far more often than forwards call ops.
OPS = {"T", "H", "mT", "mH", "real", "imag", "data", "grad", "shape"}
QUESTIONS = {"stride", "storage_offset", "dim", "untyped_storage", "_is_view", "is_inference", "is_conj", "is_neg"}


def asks(func: Any) -> bool:
    """Whether a function of torch only asks something of a tensor."""
    name = func.__name__
    return func.__self__.__name__ not in OPS if name in ("__get__", "__set__") else name in QUESTIONS


def noted() -> AbstractContextManager[None]:
    """A block within which nodes that are made know where they are from."""
    frames = list(stack())
    checkpoint = next((frame for frame in reversed(frames) if is_checkpoint(frame)), None)
    recomputed = None if checkpoint is None else number_of(checkpoint)
    return traceback.annotate({PLACE: innermost((f, f.f_lineno) for f in frames), RECOMPUTED: recomputed})


@contextmanager
def lines_noted() -> Iterator[None]:
    _now.checkpoints = []
    with ExitStack() as stack:
        stack.callback(delattr, _now, "checkpoints")
        stack.enter_context(traceback.preserve_node_meta())
        stack.enter_context(Lines())
        yield


def stack() -> Iterator[FrameType]:
    """The frames from here outwards."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_checkpoint(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_filename == checkpoint.__file__ and code.co_name == checkpoint.checkpoint.__name__


_now = threading.local()  # the frames of the calls of checkpoint that the thread's export has met


def number_of(call: FrameType) -> int:
    """The number of a call of checkpoint. Frames are kept for as long as one can be taken for another."""
    met: list[FrameType] = getattr(_now, "checkpoints", [])
    if call not in met:
        met.append(call)
    return met.index(call)


def place_in(node: fx.Node) -> str:
    """ "file:line: text" of the user's line that made a node of an exported graph; "" where none did."""
    return str(node.meta.get("custom", {}).get(PLACE, ""))


def checkpoint_of(node: fx.Node) -> int | None:
    """The number of the call of torch.utils.checkpoint within which a node was made, None where there was none."""
    number: int | None = node.meta.get("custom", {}).get(RECOMPUTED)
    return number
