"""bppsa: back-propagation as a scan over transposed Jacobians, for PyTorch.

`compile` returns a model that computes the same with faster kernels, `loop` does that for a function, `scan` runs a
recurrence over a cell you wrote, `explain` says what was found, what was chosen and why, `report` what the last call of
a compiled model did, and `measure` how fast the device at hand is.
Names resolve on first use (PEP 562), so that `import bppsa.schedule` loads no torch. What is not in `__all__` is
private.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bppsa import cells, errors, schedule, strategies
    from bppsa.api.compiling import compile, report, scan, trainer
    from bppsa.api.explaining import explain
    from bppsa.api.jacobians import jacobian, jacobian_plan, transposed_jacobian
    from bppsa.api.measuring import measure
    from bppsa.api.planning import plan_training
    from bppsa.decisions import Report
    from bppsa.frontend.loops.functions import loop
    from bppsa.fxpasses.partition import partition

__version__ = "0.2.0"
__all__ = [
    "Report",
    "__version__",
    "cells",
    "compile",
    "errors",
    "explain",
    "jacobian",
    "jacobian_plan",
    "loop",
    "measure",
    "partition",
    "plan_training",
    "report",
    "scan",
    "schedule",
    "strategies",
    "trainer",
    "transposed_jacobian",
]

_MODULES = frozenset({"cells", "errors", "schedule", "strategies"})
_HOMES = {
    **dict.fromkeys(("compile", "report", "scan", "trainer"), "bppsa.api.compiling"),
    **dict.fromkeys(("jacobian", "jacobian_plan", "transposed_jacobian"), "bppsa.api.jacobians"),
    "Report": "bppsa.decisions",
    "explain": "bppsa.api.explaining",
    "loop": "bppsa.frontend.loops.functions",
    "measure": "bppsa.api.measuring",
    "partition": "bppsa.fxpasses.partition",
    "plan_training": "bppsa.api.planning",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"bppsa.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value  # the next use does not come here
        return value
    raise AttributeError(f"module 'bppsa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)  # a completion shows what is public
