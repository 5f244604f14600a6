"""What bppsa keeps in a module of a compiled model: one record, under one private name.

All other names of a module are its user's. `.report` is ours too, in a compiled model that has no such name: it holds
what `bppsa.report(model)` gives, which works whatever the user's names are.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import nn

from bppsa.decisions import RECORD, Decision, Report
from bppsa.plan.chain_options import ChainOptions
from bppsa.plan.forward import SEQUENTIAL, Forward
from bppsa.plan.strategy import AUTO, Strategy
from bppsa.runtime.recurrent.newton import NewtonHistory

TABLES = ("_parameters", "_buffers", "_modules")
BY_SIZE = ("decided", "settled")


@dataclass(eq=False)
class ModuleRecord:
    """What was asked of a module, and what its calls have found out.

    A copy or a pickle keeps what was asked and reported. Caches begin empty in it, because they belong to one object in
    one process; `memory`, and whatever is in `pruned` and `loops`, see to that themselves.
    """

    path: str = ""
    # of a recurrent module
    strategy: Strategy = AUTO
    forward: Forward = SEQUENTIAL
    memory: NewtonHistory = field(default_factory=NewtonHistory)  # of Newton's iteration
    decided: dict[Any, Any] = field(default_factory=dict)  # Machine and Decision of what may be PyTorch's, by size
    settled: dict[Any, Any] = field(default_factory=dict)  # a `frontend.rnn.recurrent.Settled` each, likewise
    # of a feed-forward chain
    options: ChainOptions | None = None
    # of a pruned network
    pruned: Any = None  # a `bppsa.frontend.pruned.masking.state.PrunedState`
    # of a module that has a loop over time
    loops: Any = None  # a `bppsa.frontend.loops.state.LoopState`
    # of a compiled model as a whole; `report` is None for a module that is only a part of one
    asked: tuple[Strategy, Forward] | None = None  # for scans
    left: tuple[Decision, ...] = ()  # what every report begins with
    report: Report | None = None
    scheduled: Any = None  # what trains it on several workers

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: {} if each.name in BY_SIZE else getattr(self, each.name) for each in fields(self)}

    def of_clone(self) -> ModuleRecord:
        """The record for the module's counterpart in a clone of its model, whose calls are its own."""
        return replace(
            self,
            memory=NewtonHistory(),
            decided={},
            settled={},
            pruned=self.pruned and self.pruned.of_clone(),
            loops=self.loops and self.loops.of_clone(),
        )


def state_of(module: nn.Module) -> ModuleRecord:
    """The module's record, which is made where there is none."""
    found: ModuleRecord | None = module.__dict__.get(RECORD)
    if found is None:
        found = module.__dict__[RECORD] = ModuleRecord()
    return found


def is_compiled(module: nn.Module) -> bool:
    """Whether it is a compiled model as a whole; a part of one, or an attribute `report` of the user's, is not."""
    found: ModuleRecord | None = module.__dict__.get(RECORD)
    return found is not None and found.report is not None


def show(module: nn.Module, report: Report) -> None:
    """Make `report` that of a compiled model: under `.report` too, if that shows ours, or is free the first time."""
    state, own = state_of(module), module.__dict__
    if own.get("report") is state.report if state.report is not None else is_free(module, "report"):
        own["report"] = report
    state.report = report


def is_free(module: nn.Module, name: str) -> bool:
    """Whether neither the module nor its class has an attribute of this name. No property of the user's is run."""
    trainer = state_of(module).scheduled
    if trainer is not None:
        return is_free(trainer.given, name)
    if inspect.getattr_static(module, name, None) is not None or any(name in module.__dict__[t] for t in TABLES):
        return False
    return type(module).__getattr__ is nn.Module.__getattr__ or not hasattr(module, name)


def as_given(module: nn.Module, cls: type[nn.Module]) -> Any:
    """The module as an object of its user's class, without what is ours, for torch.jit.script."""
    plain: Any = object.__new__(cls)
    ours = state_of(module), state_of(module).report
    plain.__dict__.update(
        {name: x for name, x in module.__dict__.items() if x is None or not any(x is y for y in ours)}
    )
    own = getattr(cls, "__prepare_scriptable__", None)
    return plain if own is None else own(plain)
