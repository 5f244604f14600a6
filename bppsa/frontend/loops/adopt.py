"""Which modules of a clone are looked at: those whose forward, or a function that it names, has a loop."""

from __future__ import annotations

from torch import nn

from bppsa.codegen.cpu import build
from bppsa.frontend.loops.classes import Looped, kinds_of_objects, leading, prepare
from bppsa.frontend.loops.state import LoopState
from bppsa.frontend.rewritten import kind_of, put_before, take_away
from bppsa.frontend.state import TABLES, state_of
from bppsa.fxpasses.reroll.log.lines import loops
from bppsa.fxpasses.reroll.outline.reach import reached, within

FOLDS = {"reduce", "accumulate"}  # functools' and itertools', which loop over time for their caller


def adopt_loops(root: nn.Module) -> None:
    """Give the modules with a loop the class that looks at their calls."""
    if build.available() is not None:
        return
    for path, module in root.named_modules():
        take_away(module, Looped)  # of a compiled model within this one
        if has_loop(module):
            gives_way = not forward_loops(module)
            put_before(module, Looped)
            prepare(type(module))
            state_of(module).loops = LoopState(path, gives_way=gives_way)


def has_loop(module: nn.Module) -> bool:
    """Whether its forward, or another method that a user may call, reaches one."""
    kind = kind_of(module)
    if kind.__module__.partition(".")[0] == "torch":
        return False
    return forward_loops(module) or bool(leading(kind))


def forward_loops(module: nn.Module) -> bool:
    if getattr(kind_of(module), "forward", None) is nn.Module.forward:
        return False
    kinds = [kind_of(module), *kinds_of_objects(module)]
    functions = [module.forward, *(value for name, value in vars(module).items() if name not in TABLES)]
    found = (each for function in functions for each in reached(function, kinds))
    codes = (code for each in found for code in within(each.__code__))
    return any(loops(code) or not FOLDS.isdisjoint(code.co_names) for code in codes)
