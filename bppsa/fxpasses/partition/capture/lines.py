"""Which line of the user's code each op of an exported graph comes from, and which call of torch.utils.checkpoint.

Export itself notes the lines of forwards only, and not of functions that these call.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any

from torch import fx
from torch.fx import traceback
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from bppsa.fxpasses.partition.call.places import innermost
from bppsa.fxpasses.theirs import theirs

PLACE, RECOMPUTED = "bppsa_place", "bppsa_recomputed"


class Lines(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
    recomputed = next((id(frame) for frame in reversed(frames) if is_checkpoint(frame)), None)
    return traceback.annotate({PLACE: innermost((f, f.f_lineno) for f in frames), RECOMPUTED: recomputed})


@contextmanager
def lines_noted() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(traceback.preserve_node_meta())
        stack.enter_context(Lines())
        yield


def stack() -> Iterator[FrameType]:
    """From here outwards."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_checkpoint(frame: FrameType) -> bool:
    return frame.f_code.co_filename == checkpoint.__file__


def place_in(node: fx.Node) -> str:
    """ "file:line: text" of the user's line that made a node of an exported graph; "" where none did."""
    return str(node.meta.get("custom", {}).get(PLACE, ""))


def is_recomputed(node: fx.Node) -> bool:
    return node.meta.get("custom", {}).get(RECOMPUTED) is not None
