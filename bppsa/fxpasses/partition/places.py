"""Where in the user's code something happens: the innermost frame that is neither PyTorch's nor ours."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import torch

OURS = Path(__file__).parents[2]
NOT_THE_USERS = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, OURS))


def place_of(error: BaseException) -> str:
    """ "file:line: text" of the user's line that raised the error; "" where none did."""
    return innermost(reversed(list(traceback.walk_tb(error.__traceback__))))


def place_here() -> str:
    """The same for the user's line that led here."""
    return innermost(traceback.walk_stack(sys._getframe(1)))


def is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not file.startswith(NOT_THE_USERS) and not file.startswith("<")


def innermost(frames: Iterable[tuple[FrameType, int]]) -> str:
    for frame, line in frames:
        file = frame.f_code.co_filename
        if is_users(frame):
            text = traceback.FrameSummary(file, line, frame.f_code.co_name).line
            return f"{file}:{line}: {text}" if text else f"{file}:{line}"
    return ""
