"""The options of the four products of `bppsa.compile`, a record each: kernels, scan over stages, Inductor, schedule.

An option says something about the product that is asked for, or is an error that names it and the mend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, NamedTuple

from torch import Tensor, nn

from bppsa.common.stages import COST, MEASURED, SELECTIVE
from bppsa.errors import ArgumentError, StrategyError, kind_of
from bppsa.plan.forward import Forward
from bppsa.plan.strategy import Strategy
from bppsa.schedule.job_graph.spec import Build, Recipe, Schedule
from bppsa.schedule.recompute import FULL

FALLBACKS = ("eager", "inductor")
SPARSE = ("masks", "auto")
DATA = ("global", "local")
RECOMPUTE = (FULL, SELECTIVE)
BALANCE = (COST, MEASURED)


class OptionKind(NamedTuple):
    """What an option may be. least: of numbers. known: all that it may be."""

    fits: Callable[[Any], bool]
    takes: str
    least: int | None = None
    known: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> None:
        """Raises ArgumentError (a TypeError) for another type, StrategyError (a ValueError) for another value."""
        if self.known and value not in self.known:
            raise StrategyError(f"unknown {name}={value!r}; known: {', '.join(self.known)}")
        if not self.fits(value):
            got = repr(value) if isinstance(value, (str, int, float)) else f"{kind_of(value)}"
            raise ArgumentError(f"{name}= takes {self.takes}, not {got}")
        if self.least is not None and is_int(value) and value < self.least:
            raise StrategyError(f"{name}={value}; it has to be at least {self.least}")


def is_int(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_positive(value: Any) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < math.inf


def is_stages(value: Any) -> bool:
    modules = list(value) if isinstance(value, (Sequence, nn.ModuleList, nn.Sequential)) else []
    return is_int(value) or (bool(modules) and all(isinstance(module, nn.Module) for module in modules))


KINDS: Mapping[str, OptionKind] = {
    "fallback": OptionKind(bool, "", known=FALLBACKS),
    "strict": OptionKind(lambda value: isinstance(value, bool), "True or False"),
    "budget": OptionKind(is_int, "a number of bytes, an int", least=0),
    "masks": OptionKind(
        lambda value: isinstance(value, Mapping),
        'a mapping from names of weights to bool tensors, such as {"features.0.weight": mask}',
    ),
    "sparse": OptionKind(bool, "", known=SPARSE),
    "loops": OptionKind(lambda value: isinstance(value, bool), "True or False"),
    "schedule": OptionKind(
        lambda value: isinstance(value, (Schedule, Recipe)) or callable(value),
        "a schedule, such as bppsa.schedule.gpipe(), or a function of (S, B, W)",
    ),
    "microbatches": OptionKind(is_int, "an int", least=1),
    "stages": OptionKind(is_stages, "an int, or a list of modules of the model", least=1),
    "workers": OptionKind(is_int, "an int", least=1),
    "loss_fn": OptionKind(callable, "a function of (output, target), such as nn.CrossEntropyLoss()"),
    "loss_weight": OptionKind(callable, "a function of a target, such as len"),
    "example_kwargs": OptionKind(
        lambda value: isinstance(value, Mapping), "a dict, the keyword arguments of a call of the model"
    ),
    "data": OptionKind(bool, "", known=DATA),
    "seed": OptionKind(is_int, "an int"),
    "balance": OptionKind(bool, "", known=BALANCE),
    "speeds": OptionKind(
        lambda value: isinstance(value, Sequence) and bool(value) and all(map(is_positive, value)),
        "a list with a number above 0 for each worker, such as [1, 1, 0.5]",
    ),
    "recompute": OptionKind(
        lambda value: value in RECOMPUTE if isinstance(value, str) else callable(value),
        '"full", "selective", or a function of a stage\'s number that gives one of them, or None',
    ),
}
NEEDS_SCHEDULE = "give schedule= too, which gives the model its step(x, target), or leave it out"
NEEDS_MASKS = "masks= and sparse= go with strategy 'auto' or 'sequential', and without schedule="
NEEDS_SCAN = 'give a strategy that scans, such as "blelloch", and neither schedule= nor inductor'
MENDS: Mapping[str, str] = {
    "masks": NEEDS_MASKS,
    "sparse": NEEDS_MASKS,
    "strict": NEEDS_SCAN,
    "budget": NEEDS_SCAN,
    "loops": "loops= goes with neither schedule= nor fallback='inductor'; leave it out",
    "fallback": "schedule= goes with strategy and forward alone of the other options; leave it out",
}


@dataclass(frozen=True)
class ProductOptions:
    """What every product takes.

    Raises ArgumentError or StrategyError for a value that an option cannot have.
    """

    strategy: Strategy
    forward: Forward

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in KINDS and value is not None:
                KINDS[each.name].check(each.name, value)

    @property
    def product(self) -> str:
        """What is asked for, as a reader would say it."""
        return f"with strategy={str(self.strategy)!r}"


@dataclass(frozen=True)
class KernelOptions(ProductOptions):
    """Recurrences, loops and pruned layers by kernels; PyTorch runs the rest."""

    fallback: str = "eager"
    masks: Mapping[str, Tensor] | None = None
    sparse: str = "masks"
    loops: bool = True


@dataclass(frozen=True)
class ScanOptions(ProductOptions):
    """The same but for pruned layers, and a scan over feed-forward stages in the backward."""

    fallback: str = "eager"
    strict: bool = False
    budget: int | None = None
    loops: bool = True


@dataclass(frozen=True)
class InductorOptions(ProductOptions):
    """Recurrences by kernels; Inductor is given the rest."""

    fallback: str = "inductor"
    masks: Mapping[str, Tensor] | None = None
    sparse: str = "masks"

    @property
    def product(self) -> str:
        return f"{super().product}, fallback='inductor'"


@dataclass(frozen=True)
class ScheduleOptions(ProductOptions):
    """Training on several workers. The defaults are those that `bppsa.compile` documents."""

    schedule: Schedule | Recipe | Build
    microbatches: int = 8
    stages: int | Sequence[nn.Module] | None = None
    workers: int | None = None
    loss_fn: Callable[..., Tensor] | None = None
    loss_weight: Callable[[Any], float] | None = None
    example_inputs: Any = None
    example_kwargs: Mapping[str, Any] | None = None
    data: str = "global"
    seed: int | None = None
    recompute: str | Callable[[int], str | None] | None = None
    balance: str = COST
    speeds: Sequence[float] | None = None

    @property
    def product(self) -> str:
        return "with schedule="


def record_of(strategy: Strategy, given: Mapping[str, Any]) -> type[ProductOptions]:
    """The record of the product that is asked for. given: options by name, those alone that were given."""
    if "schedule" in given:
        return ScheduleOptions
    if given.get("fallback") == "inductor":
        return InductorOptions
    return KernelOptions if strategy.name in ("auto", "sequential") else ScanOptions


def options_of(strategy: Strategy, forward: Forward, **options: Any) -> ProductOptions:
    """The options of one product. options: by the names of `bppsa.compile`; None is not given.

    Raises:
        ArgumentError: a value of another type.
        StrategyError: a value that an option cannot have, or an option of another product.
    """
    given = {name: value for name, value in options.items() if value is not None}
    record = record_of(strategy, given)
    taken = {each.name for each in fields(record)}
    chosen = record(strategy, forward, **{name: value for name, value in given.items() if name in taken})
    idle = next((name for name in given if name not in taken), None)
    if idle is not None:
        raise StrategyError(f"{idle}= says nothing {chosen.product}; {MENDS.get(idle, NEEDS_SCHEDULE)}")
    return chosen
