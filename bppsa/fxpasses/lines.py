"""Whose code a file holds, and how a message shows a line of it."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
import types
from pathlib import Path

import torch

OURS = Path(__file__).parents[1]
FRAME = re.compile(r'File "(.+)", line (\d+), in .*\n\s*(.+)')
PYTHON = f"{sysconfig.get_path('stdlib')}{os.sep}"  # which may hold site-packages
NOT_THE_USERS = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, OURS))


def is_users(file: str) -> bool:
    """Whether it is neither PyTorch's, nor Python's, nor ours, and no code without a file."""
    return not file.startswith((*NOT_THE_USERS, "<")) and not (file.startswith(PYTHON) and "-packages" not in file)


def shown(file: str, line: int | str, text: str | None) -> str:
    """ "file:line: text", or "file:line" where the text is not known."""
    return f"{file}:{line}: {text}" if text else f"{file}:{line}"


def line_of(frame: types.FrameType | None) -> str:
    """The line of the innermost code of the user's that runs this frame, as a message shows it."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    file, line = frame.f_code.co_filename, frame.f_lineno
    return shown(file, line, linecache.getline(file, line).strip())


def line_now() -> str:
    return line_of(sys._getframe(1))


def line_that_raised(error: BaseException) -> str:
    """The line of the innermost code of the user's that an exception went through."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if is_users(trace.tb_frame.f_code.co_filename):
            found = trace
        trace = trace.tb_next
    if found is None:
        return ""
    file = found.tb_frame.f_code.co_filename
    return shown(file, found.tb_lineno, linecache.getline(file, found.tb_lineno).strip())


def place_of_trace(text: str) -> tuple[str, str, str] | None:
    """File, line and text of the innermost code of the user's in a stack trace, as Dynamo keeps one with a node."""
    return next((place for place in reversed(FRAME.findall(text)) if is_users(place[0])), None)
