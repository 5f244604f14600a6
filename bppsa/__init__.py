"""bppsa: back-propagation as a scan over transposed Jacobians, for PyTorch.

`compile` returns a model that computes the same with faster kernels, `scan` runs a recurrence over a cell you wrote,
`explain` says what was found, what was chosen and why, and `measure` how fast the device at hand is.
Names resolve on first use (PEP 562), so that `import bppsa.schedule` loads no torch. What is not in `__all__` is
private.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bppsa import cells, errors, schedule, strategies
    from bppsa._api import compile, explain, scan
    from bppsa._jacobian import jacobian, jacobian_plan, transposed_jacobian
    from bppsa._measure import measure
    from bppsa.fxpasses.partition import partition

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "cells",
    "compile",
    "errors",
    "explain",
    "jacobian",
    "jacobian_plan",
    "measure",
    "partition",
    "scan",
    "schedule",
    "strategies",
    "transposed_jacobian",
]

_MODULES = frozenset({"cells", "errors", "schedule", "strategies"})
_HOMES = {
    **dict.fromkeys(("compile", "explain", "scan"), "bppsa._api"),
    **dict.fromkeys(("jacobian", "jacobian_plan", "transposed_jacobian"), "bppsa._jacobian"),
    "measure": "bppsa._measure",
    "partition": "bppsa.fxpasses.partition",
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
