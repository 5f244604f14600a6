"""How a forward may be run: one step after the other, by Newton's iteration over chunks of steps, or by PyTorch's own
kernel, whose states the backward goes on from."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from bppsa.errors import StrategyError
from bppsa.plan.strategy import Division, Strategy, divide

NAMES = ("sequential", "newton", "pytorch", "auto")
JACOBIANS = ("full", "diagonal")
REPLAYED = 16  # steps of a chunk in which a GPU computes what PyTorch's forward has not kept
MOST_ITERATIONS = 16  # a forward that converges takes two to six; what takes more rarely gets there
TEXT = re.compile(r"(?P<name>\w+)(\((?P<options>[^()]*)\))?")
READERS: Mapping[str, Callable[[str], Any]] = {
    "length": int,
    "iterations": int,
    "tolerance": float,
    "jacobian": str,
    "warm_start": lambda text: {"True": True, "False": False}[text],
}


@dataclass(frozen=True)
class Forward:
    """Made by `bppsa.strategies.newton`, or by name."""

    name: str
    length: int | None = None  # steps a chunk; None for the default of T
    iterations: int = MOST_ITERATIONS  # at most so many
    tolerance: float | None = None  # of the residual; None for that of rounding
    jacobian: str = "full"
    warm_start: bool = False

    def __post_init__(self) -> None:
        """Raises StrategyError for a value that an option cannot have."""
        if self.name not in NAMES:
            raise StrategyError(f"unknown forward {self.name!r}; known: {', '.join(NAMES)}, bppsa.strategies.newton()")
        for option, value, least in (("length", self.length, 1), ("iterations", self.iterations, self.name != "auto")):
            if value is not None and (type(value) is not int or value < least):
                raise StrategyError(f"{option}={value!r}; it has to be an int of at least 1")
        if self.tolerance is not None and not (0 < self.tolerance < math.inf):
            raise StrategyError(f"tolerance={self.tolerance!r}; it has to be a float above 0, or None for rounding's")
        if self.jacobian not in JACOBIANS:
            raise StrategyError(f"jacobian={self.jacobian!r}; it has to be one of {', '.join(JACOBIANS)}")
        if type(self.warm_start) is not bool:
            raise StrategyError(f"warm_start={self.warm_start!r}; it has to be a bool")

    def __str__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        options = ", ".join(f"{name}={value}" for name, value in given if name != "name")
        return f"{self.name}({options})" if options else self.name


SEQUENTIAL, NEWTON, LIBRARY, AUTO = map(Forward, ("sequential", "newton", "pytorch", "auto"))
RESTING = Forward("auto", iterations=0)  # "auto" for a while after Newton's iteration has failed


def forward_of(value: str | Forward) -> Forward:
    """The forward of a name, or of the text of one with options. Raises StrategyError, which lists the known names."""
    return value if isinstance(value, Forward) else parsed(value if isinstance(value, str) else repr(value))


@functools.lru_cache(maxsize=64)
def parsed(value: str) -> Forward:
    found = TEXT.fullmatch(value)
    if found is None or (found["options"] and found["name"] != "newton"):
        raise StrategyError(f"unknown forward {value!r}; known: {', '.join(NAMES)}, bppsa.strategies.newton()")
    options = {}
    for part in filter(None, (found["options"] or "").split(",")):
        name, _, text = part.strip().partition("=")
        try:
            options[name] = READERS[name](text)
        except (KeyError, ValueError) as error:
            raise StrategyError(f"forward {value!r} has {part.strip()!r}; known: {', '.join(READERS)}") from error
    return Forward(found["name"], **options)


def division(forward: Forward, steps: int) -> Division:
    """The chunks that Newton's iteration sweeps side by side, and the linear scan over them."""
    return divide(Strategy("chunked", length=forward.length), steps)
