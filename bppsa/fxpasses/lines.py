"""Whose code a file holds, and how a message shows a line of it."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterable
from pathlib import Path

import torch

OURS = Path(__file__).parents[1]
FRAME = re.compile(r'File "(.+)", line (\d+), in .*\n\s*(.+)')
PYTHON = f"{sysconfig.get_path('stdlib')}{os.sep}"  # which may hold site-packages
MODULES = tuple(Path(torch.__file__).parent / "nn" / folder for folder in ("modules", "utils"))
NOT_THE_USERS = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, OURS))


def is_users(file: str) -> bool:
    """Whether it is neither PyTorch's, nor Python's, nor ours, and no code without a file."""
    return not file.startswith((*NOT_THE_USERS, "<")) and not (file.startswith(PYTHON) and "-packages" not in file)


def is_users_frame(frame: types.FrameType) -> bool:
    return is_users(frame.f_code.co_filename)


def shown(file: str, line: int | str, text: str | None) -> str:
    """ "file:line: text", or "file:line" where the text is not known."""
    return f"{file}:{line}: {text}" if text else f"{file}:{line}"


def place_of(error: BaseException) -> str:
    """The line of the innermost code of the user's that an exception went through; "" where there is none."""
    return innermost(reversed(list(traceback.walk_tb(error.__traceback__))))


def place_here() -> str:
    """The same for the user's line that led here."""
    return innermost(traceback.walk_stack(sys._getframe(1)))


def innermost(frames: Iterable[tuple[types.FrameType, int]]) -> str:
    return next((place_at(frame.f_code.co_filename, line) for frame, line in frames if is_users_frame(frame)), "")


def mend_in_place(mend: str) -> str:
    """What to do about a change in place: `mend` where it stands in the user's code. A module of PyTorch's that keeps
    state of its own in training, as batch norm does, makes it without a line of theirs."""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        file = Path(frame.f_code.co_filename)
        if is_users_frame(frame):
            break
        if file.parent in MODULES and file.stem != "module":
            return (
                f"in training torch.nn's {file.stem} changes what it keeps: call its eval(), or run it outside the scan"
            )
    return mend


def place_at(file: str, line: int) -> str:
    return shown(file, line, linecache.getline(file, line).strip())


def place_of_trace(text: str) -> tuple[str, str, str] | None:
    """File, line and text of the innermost code of the user's in a stack trace, as Dynamo keeps one with a node."""
    return next((place for place in reversed(FRAME.findall(text)) if is_users(place[0])), None)
