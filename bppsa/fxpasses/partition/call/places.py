"""Where in the user's code something happens: the innermost frame that is neither PyTorch's, nor Python's, nor ours."""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Iterable
from types import FrameType

from bppsa.fxpasses import lines


def place_of(error: BaseException) -> str:
    """ "file:line: text" of the user's line that raised the error; "" where none did."""
    return innermost(reversed(list(traceback.walk_tb(error.__traceback__))))


def place_here() -> str:
    """The same for the user's line that led here."""
    return innermost(traceback.walk_stack(sys._getframe(1)))


def is_users(frame: FrameType) -> bool:
    return lines.is_users(frame.f_code.co_filename)


def innermost(frames: Iterable[tuple[FrameType, int]]) -> str:
    return next((place_at(frame.f_code.co_filename, line) for frame, line in frames if is_users(frame)), "")


def place_at(file: str, line: int) -> str:
    return lines.shown(file, line, linecache.getline(file, line).strip())
