"""Which modules of a clone run their pruned layers by kept weights."""

from __future__ import annotations

from torch import nn

from bppsa.codegen.cpu import build
from bppsa.decisions import Decision
from bppsa.frontend.pruned.capture.frames import is_available
from bppsa.frontend.pruned.classes import Pruned, adopt, holds_masks, holds_pruned
from bppsa.frontend.pruned.masking.layer import ask_for_products
from bppsa.frontend.rewritten import take_away

TOO_OLD = "pruned layers have kernels with torch 2.13, whose TorchDynamo captures them"


def adopt_pruned(root: nn.Module, by_forwards: bool) -> dict[str, Decision]:
    """Give those modules the class that runs them so; by path what they are. by_forwards: whether masks count that no
    layer has, and a forward may multiply weights by."""
    found = holds_masks(root) if by_forwards else holds_pruned(root)
    if not found or build.available() is not None:
        return {}
    if not is_available():
        return {"": Decision("", "pruned", "pytorch", TOO_OLD)}
    for module in root.modules():  # of a compiled model within this one
        take_away(module, Pruned)
    ask_for_products(root)
    return {path: Decision(path, "pruned", "waiting", "decided in its first call") for path in adopt(root, "")}
