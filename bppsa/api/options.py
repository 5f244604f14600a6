"""The options of `bppsa.compile` and `bppsa.explain`, checked: each says something about what is asked for, or is an
error that names it and the mend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, NamedTuple

from torch import Tensor, nn

from bppsa.errors import ArgumentError, StrategyError
from bppsa.plan.forward import Forward
from bppsa.plan.strategy import Strategy
from bppsa.schedule.spec import Build, Recipe, Schedule

FALLBACKS = ("eager", "inductor")
SPARSE = ("masks", "auto")
DATA = ("global", "local")
MICROBATCHES = STAGES = 8


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
            got = repr(value) if isinstance(value, (str, int, float)) else f"a {type(value).__name__}"
            raise ArgumentError(f"{name}= takes {self.takes}, not {got}")
        if self.least is not None and is_int(value) and value < self.least:
            raise StrategyError(f"{name}={value}; it has to be at least {self.least}")


def is_int(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


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
}
OF_SCHEDULES = (
    *("microbatches", "stages", "workers", "loss_fn", "loss_weight"),
    *("example_inputs", "example_kwargs", "data", "seed"),
)
OF_PRUNING = ("masks", "sparse")
OF_SCANS = ("strict", "budget")
MENDS: Mapping[str, str] = {
    **dict.fromkeys(OF_SCHEDULES, "give schedule= too, which gives the model its step(x, target), or leave it out"),
    **dict.fromkeys(OF_PRUNING, "masks= and sparse= go with strategy 'auto' or 'sequential', and without schedule="),
    **dict.fromkeys(OF_SCANS, 'give a strategy that scans, such as "blelloch", and neither schedule= nor inductor'),
    "loops": "loops= goes with neither schedule= nor fallback='inductor'; leave it out",
    "fallback": "schedule= goes with strategy and forward alone of the other options; leave it out",
}


@dataclass(frozen=True)
class CompileOptions:
    """What was given to `bppsa.compile`; None where nothing was.

    Raises ArgumentError or StrategyError for a value that an option cannot have, and StrategyError for an option that
    says nothing about what is asked for.
    """

    strategy: Strategy
    forward: Forward
    fallback: str | None = None
    strict: bool | None = None
    budget: int | None = None
    masks: Mapping[str, Tensor] | None = None
    sparse: str | None = None
    loops: bool | None = None
    schedule: Schedule | Recipe | Build | None = None
    microbatches: int | None = None
    stages: int | Sequence[nn.Module] | None = None
    workers: int | None = None
    loss_fn: Callable[..., Tensor] | None = None
    loss_weight: Callable[[Any], float] | None = None
    example_inputs: Any = None
    example_kwargs: Mapping[str, Any] | None = None
    data: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        given = {each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) is not None}
        for name, value in given.items():
            if name in KINDS:
                KINDS[name].check(name, value)
        idle = given.keys() - self.applying - {"strategy", "forward", "schedule"}
        for name in (each.name for each in fields(self) if each.name in idle):
            raise StrategyError(f"{name}= says nothing {self.product}; {MENDS[name]}")

    @property
    def scans(self) -> bool:
        """Whether feed-forward stages are to be scanned over."""
        return self.strategy.name not in ("auto", "sequential")

    @property
    def by_inductor(self) -> bool:
        return self.fallback == "inductor"

    @property
    def applying(self) -> set[str]:
        """Options that say something, besides strategy, forward and schedule."""
        if self.schedule is not None:
            return set(OF_SCHEDULES)
        pruning, scans = () if self.scans else OF_PRUNING, OF_SCANS if self.scans and not self.by_inductor else ()
        return {"fallback", *pruning, *scans, *(() if self.by_inductor else ("loops",))}

    @property
    def product(self) -> str:
        """What is asked for, as a reader would say it."""
        if self.schedule is not None:
            return "with schedule="
        return f"with strategy={str(self.strategy)!r}{', fallback=' + repr('inductor') if self.by_inductor else ''}"
