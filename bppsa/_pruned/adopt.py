"""Which modules of a clone run their pruned layers by kept weights: the topmost whose forward can be traced."""

from __future__ import annotations

from torch import nn

from bppsa._pruned.classes import Pruned
from bppsa._pruned.masks import LAYERS, is_masked
from bppsa._pruned.product import ask_for_products
from bppsa._pruned.rewritten import put_before
from bppsa._pruned.tracing import trace
from bppsa.codegen import build
from bppsa.errors import Unsupported
from bppsa.report import Decision


def adopt_pruned(root: nn.Module) -> dict[str, Decision]:
    """Give those modules the class that runs them so; by path what they are."""
    found: dict[str, Decision] = {}
    if holds_pruned(root) and build.available() is None:
        ask_for_products(root)
        _adopt(root, "", found)
    return found


def _adopt(module: nn.Module, path: str, found: dict[str, Decision]) -> None:
    if not holds_pruned(module):
        return
    before, had = module.__class__, dict(module.__dict__)
    put_before(module, Pruned)
    module.__dict__.update(_bppsa_path=path, _bppsa_memo=None)
    try:
        trace(module)
        found[path] = Decision(path, "pruned", "waiting", "decided in its first call")
    except Unsupported as error:
        module.__class__ = before
        for name in module.__dict__.keys() - had.keys():
            del module.__dict__[name]
        found[path] = Decision(path, "pruned", "pytorch", str(error.reason))
        for name, child in module.named_children():
            _adopt(child, f"{path}.{name}" if path else name, found)


def holds_pruned(module: nn.Module) -> bool:
    return any(isinstance(child, LAYERS) and is_masked(child) for child in module.modules())
