"""Whether a model's own code asks of which class exactly a module is, as `type(self.rnn) is nn.LSTM` does.

A rewritten module is of a class derived from its own, for which such a question has another answer.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from itertools import chain
from types import FunctionType

from torch import nn

from bppsa.errors import Reason
from bppsa.frontend.loops.classes import kinds_of_objects
from bppsa.frontend.pruned.classes import Pruned
from bppsa.frontend.rewritten import Rewritten, kind_of
from bppsa.fxpasses.environment.libraries import is_users_name
from bppsa.fxpasses.lines import shown
from bppsa.fxpasses.reroll.outline.class_questions import questions
from bppsa.fxpasses.reroll.outline.reach import reached

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
WHAT = "asks for the exact class of a module, and bppsa would give it one derived from that"
MEND = "ask by isinstance to have it rewritten"


def class_question(model: nn.Module) -> Reason | None:
    """The first such line that asks of a module that was rewritten. model: a rewritten one."""
    modules = list(model.modules())
    everywhere = any(isinstance(module, Pruned) for module in modules)  # its parts may be rewritten later
    rewritten = {kind_of(module) for module in modules if everywhere or isinstance(module, Rewritten)}
    for function in dict.fromkeys(chain.from_iterable(map(functions_of, modules))):
        for line in questions(function, rewritten):
            file = function.__code__.co_filename
            return Reason(WHAT, mend=MEND, path=shown(file, line, linecache.getline(file, line).strip()))
    return None


def functions_of(module: nn.Module) -> Iterator[FunctionType]:
    """What a call of the module may run that is the user's: its forward, hooks and properties, and the functions that
    these lead to."""
    hooks = [hook for name in HOOKS for hook in getattr(module, name).values()]
    kind = kind_of(module)
    if not is_users_name(kind.__module__):  # a library's code is none to look into
        kinds, functions = [], hooks
    else:
        kinds = [kind, *kinds_of_objects(module)]
        own = [value.fget for base in kind.__mro__ for value in vars(base).values() if isinstance(value, property)]
        functions = [vars(module).get("forward", getattr(kind, "forward", None)), *hooks, *own]
    for function in functions:
        yield from reached(function, kinds)
