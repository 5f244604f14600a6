"""How a backward may be run: strategies by name, and the chunks and levels they mean for a sequence of T steps."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from bppsa.errors import StrategyError
from bppsa.plan import levels
from bppsa.plan.levels import ScanPlan

NAMES = ("auto", "sequential", "chunked", "blelloch", "hybrid")
TEXT = re.compile(r"(?P<name>\w+)(\((?P<option>length|up_levels)=(?P<value>\d+)\))?")
LEAST = {("chunked", "length"): 1, ("hybrid", "up_levels"): 0}  # of each option there is
LEAST_CHUNK = 4  # steps; shorter ones leave nearly all work to the scan over them


@dataclass(frozen=True)
class Strategy:
    """Made by `bppsa.strategies`, or by name. length: steps a chunk, None for the default of T; up_levels: of a hybrid
    scan, None for half of them."""

    name: str
    length: int | None = None
    up_levels: int | None = None

    def __post_init__(self) -> None:
        """Raises StrategyError for an option that the strategy does not have, or not with this value."""
        for option, value in (("length", self.length), ("up_levels", self.up_levels)):
            if value is None:
                continue
            least = LEAST.get((self.name, option))
            if least is None:
                raise StrategyError(f"strategy {self.name!r} has no {option}")
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                what = f"an int of at least {least}, or None for the default"
                raise StrategyError(f"{option}={value!r}; it has to be {what}")

    def __str__(self) -> str:
        given = {"length": self.length, "up_levels": self.up_levels}
        options = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        return f"{self.name}({options})" if options else self.name


@dataclass(frozen=True)
class Division:
    """T steps as `count` chunks of `length` steps, the last may be shorter; chunks are what is scanned over."""

    length: int
    count: int
    scan: ScanPlan

    @property
    def forms_products(self) -> bool:
        """Whether matrices are multiplied, or only applied to a vector."""
        return bool(self.scan.up) or (self.length > 1 and self.count > 1)


AUTO = Strategy("auto")


def strategy_of(value: str | Strategy) -> Strategy:
    """The strategy of a name, or of the text of one with options. Raises StrategyError, which lists the known names."""
    return value if isinstance(value, Strategy) else parsed(value if isinstance(value, str) else repr(value))


@functools.lru_cache(maxsize=64)
def parsed(value: str) -> Strategy:
    found = TEXT.fullmatch(value)
    if found is None or found["name"] not in NAMES:
        raise StrategyError(f"unknown strategy {value!r}; known: {', '.join(NAMES)}, or one of bppsa.strategies")
    return Strategy(found["name"], **{found["option"]: int(found["value"])} if found["option"] else {})


def chunk_length(steps: int) -> int:
    """A power of two near sqrt(T) / 2: a chunk's steps cost a product of matrices, the scan's steps one of a matrix and
    a vector."""
    return max(LEAST_CHUNK, 2 ** round(math.log2(math.sqrt(max(steps, 1)) / 2)))


@functools.lru_cache(maxsize=256)  # a tree over many steps takes longer to write down than to look up
def divide(strategy: Strategy, steps: int) -> Division:
    """Where the choice was left open a single sweep is right: what is faster somewhere is chosen before this."""
    length = LENGTHS[strategy.name](strategy, steps)
    count = max(1, math.ceil(steps / length))
    return Division(length, count, PLANS[strategy.name](strategy, count))


def half_of_levels(strategy: Strategy, n: int) -> int:
    return levels.depth(n) // 2 if strategy.up_levels is None else strategy.up_levels


LENGTHS = {
    **dict.fromkeys(("auto", "sequential"), lambda strategy, steps: max(steps, 1)),
    "chunked": lambda strategy, steps: chunk_length(steps) if strategy.length is None else strategy.length,
    "blelloch": lambda strategy, steps: 1,
    "hybrid": lambda strategy, steps: 1,
}
PLANS = {
    **dict.fromkeys(("auto", "sequential", "chunked"), lambda strategy, n: levels.linear(n)),
    "blelloch": lambda strategy, n: levels.blelloch(n),
    "hybrid": lambda strategy, n: levels.hybrid(n, half_of_levels(strategy, n)),
}
