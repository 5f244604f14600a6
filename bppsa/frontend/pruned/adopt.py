"""Which modules of a clone run their pruned layers by kept weights."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from bppsa.codegen.cpu import build
from bppsa.decisions import Decision
from bppsa.frontend.pruned.capture.frames import is_available
from bppsa.frontend.pruned.classes import Pruned, adopt, holds_masks, holds_pruned
from bppsa.frontend.pruned.masking.layer import ask_for_products
from bppsa.frontend.rewritten import take_away

OTHER_TORCH = "pruned layers have kernels with torch 2.13, whose TorchDynamo captures them"


def adopt_pruned(root: nn.Module, goes_over_time: Callable[[], bool]) -> dict[str, Decision]:
    """Give those modules the class that runs them so; by path what they are. goes_over_time: whether something in it
    may, asked where no layer is pruned: a step may multiply its weights by masks."""
    found = holds_pruned(root) or (holds_masks(root) and not goes_over_time())
    if not found or build.available() is not None:
        return {}
    if not is_available():
        return {"": Decision("", "pruned", "pytorch", OTHER_TORCH)}
    for module in root.modules():  # of a compiled model within this one
        take_away(module, Pruned)
    ask_for_products(root)
    return {path: Decision(path, "pruned", "waiting", "decided in its first call") for path in adopt(root, "")}
