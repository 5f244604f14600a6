"""Whether a model's own code asks of which class exactly a module is, as `type(self.rnn) is nn.LSTM` does.

A rewritten module is of a class derived from its own, for which such a question has another answer.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator
from types import FunctionType

from torch import nn

from bppsa.errors import Reason
from bppsa.frontend.pruned.classes import Pruned
from bppsa.frontend.rewritten import Rewritten, kind_of
from bppsa.fxpasses.environment.class_questions import questions
from bppsa.fxpasses.environment.libraries import is_users_name
from bppsa.fxpasses.lines import shown
from bppsa.fxpasses.reroll.outline.reach import reached

WHAT = "asks of which class exactly a module is, which is rewritten as one of a class derived from it"
MEND = "ask by isinstance to have it rewritten"


def class_question(model: nn.Module) -> Reason | None:
    """The first such line that asks of a module that was rewritten. model: a rewritten one."""
    modules = list(model.modules())
    everywhere = any(isinstance(module, Pruned) for module in modules)  # its parts may be rewritten later
    rewritten = {kind_of(module) for module in modules if everywhere or isinstance(module, Rewritten)}
    for function in functions_of(dict.fromkeys(map(kind_of, modules))):
        for line in questions(function, rewritten):
            file = function.__code__.co_filename
            return Reason(WHAT, mend=MEND, path=shown(file, line, linecache.getline(file, line).strip()))
    return None


def functions_of(kinds: Iterable[type]) -> Iterator[FunctionType]:
    """The forwards of these classes that are the user's, and the functions that these lead to."""
    for kind in kinds:
        if is_users_name(kind.__module__):
            yield from reached(getattr(kind, "forward", None), [kind])
