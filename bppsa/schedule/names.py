"""What a text such as "gpipe", "lpp(G=2, R=4)" or "my_schedule.py:mine" stands for."""

from __future__ import annotations

import ast
import inspect
import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bppsa.errors import ScheduleError
from bppsa.schedule import zoo
from bppsa.schedule.job_graph.spec import Build, Recipe, Schedule

signature = partial(inspect.signature, eval_str=True)

# The entries of the zoo by name, and their parameters, of which those of one name are of one type.
ZOO: dict[str, Callable[..., Recipe]] = {
    name: entry
    for name, entry in vars(zoo).items()
    if inspect.isfunction(entry) and signature(entry).return_annotation is Recipe
}
PARAMETERS = {p.name: p for entry in ZOO.values() for p in signature(entry).parameters.values()}


def named(text: str) -> Recipe | Schedule | Build:
    """What "gpipe", "lpp(G=2, R=4)" or "my_schedule.py:name" stands for."""
    if ".py:" in text:
        return loaded(text)
    try:
        call = ast.parse(text, mode="eval").body
        name, args, keywords = (call.func, call.args, call.keywords) if isinstance(call, ast.Call) else (call, [], [])
        places = [ast.literal_eval(arg) for arg in args]
        parameters = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
    except (SyntaxError, ValueError):
        raise ScheduleError(f"{text!r} is no schedule; write it as gpipe or 'lpp(G=2, R=4)'") from None
    return made_by(ast.unparse(name), *places, **parameters)


def made_by(name: str, *places: Any, **parameters: Any) -> Recipe:
    if name not in ZOO:
        raise ScheduleError(f"{name!r} is none of {', '.join(ZOO)}; one of your own is FILE:NAME")
    takes = signature(ZOO[name])
    try:
        takes.bind(*places, **parameters)
    except TypeError as error:
        raise ScheduleError(f"{name} takes {takes.replace(return_annotation=takes.empty)}: {error}") from None
    return ZOO[name](*places, **parameters)


def loaded(place: str) -> Recipe | Schedule | Build:
    """The schedule, or the function of (S, B, W) that builds one, by this name in this file."""
    path, colon, name = place.rpartition(":")
    if not (colon and name):
        raise ScheduleError(f"{place!r} names no schedule of the file; write FILE:NAME, such as my_schedule.py:mine")
    if not Path(path).is_file():
        raise ScheduleError(f"{place!r}: there is no file {path!r}; write FILE:NAME, such as my_schedule.py:mine")
    found = runpy.run_path(path)
    if name not in found:
        raise ScheduleError(f"{path} has no {name!r}")
    schedule: Recipe | Schedule | Build = found[name]
    return schedule
