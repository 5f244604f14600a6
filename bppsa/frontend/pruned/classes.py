"""The class of a module whose layers are pruned: TorchDynamo captures its forward, and regions of the graph run on
blocked images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from bppsa.decisions import Decision, under
from bppsa.errors import Reason
from bppsa.frontend import call_log
from bppsa.frontend.pruned.capture.frames import NotCaptured, captured
from bppsa.frontend.pruned.capture.names import Names
from bppsa.frontend.pruned.masking.left import DenseCall
from bppsa.frontend.pruned.masking.masks import LAYERS, is_masked, may_mask_in_forward
from bppsa.frontend.pruned.masking.state import Capture, has_backward_hooks, mode_of, pruned_state
from bppsa.frontend.pruned.regions.graph import take_last_run
from bppsa.frontend.pruned.unusual import unusual
from bppsa.frontend.rewritten import Rewritten, put_before
from bppsa.frontend.state import is_compiled, state_of

MOST_CAPTURES = 8  # of a module whose attributes become others
LAZY = Reason("a lazy layer draws its weights in this call")
HOOKS = "its parts have backward hooks, which TorchDynamo cannot capture"


class Pruned(Rewritten):
    _bppsa_signs = True  # its forward shows the signature of the user's

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return super().forward(*args, **kwargs)
        plain = super().forward
        if not is_compiled(self):
            return call(self, plain, args, kwargs)
        call_log.begin(self)
        try:
            return call(self, plain, args, kwargs)
        finally:
            call_log.pop()

    def _bppsa_plain(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


def call(module: nn.Module, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """plain: the forward of the module's own class."""
    state = state_of(module)
    capture: Capture | None = state.pruned.capture
    if capture is not None and capture.left is not None and capture.left.holds(module, args, kwargs):
        call_log.note(*capture.left.decisions)
        return plain(*args, **kwargs)
    reason = unusual(args, kwargs)
    is_new = reason is None and (capture is None or not capture.names.hold())
    if is_new and any(map(is_lazy, module.parameters())):
        reason = LAZY
    if reason is None:
        if capture is None or is_new:
            capture = state.pruned.capture = anew(module, capture)
        reason = capture.refusal(module)
        if reason is None:
            take_last_run()  # of a call that has raised since
            run = capture.run = capture.run or captured()
            try:
                result = run(module, args, kwargs)
            except NotCaptured as error:
                reason = error.reason
            else:
                tell(module, capture, args, kwargs)
                return result
            return by_parts(module, plain, capture, reason, args, kwargs)
    call_log.note(Decision(state.path, "pruned", "pytorch", str(reason)))
    return plain(*args, **kwargs)


def anew(module: nn.Module, before: Capture | None) -> Capture:
    if before is None:
        return Capture(Names(module))
    again = replace(before, names=Names(module), run=None, captures=before.captures + 1, left=None)
    if again.captures > MOST_CAPTURES and mode_of(module) not in before.refused:
        adopt_parts(module, state_of(module).path)
        what = "attributes were added to its modules or other classes, or taken away, or methods became others"
        again.refuse(module, Reason(f"{what}, in {MOST_CAPTURES} calls"))
    return again


def by_parts(
    module: nn.Module,
    plain: Callable[..., Any],
    capture: Capture,
    reason: Reason,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Has the parts captured from now on, unless PyTorch cannot run this call either: Dynamo refuses what the forward
    will raise."""
    path = state_of(module).path
    if has_backward_hooks(module):
        reason = replace(reason, what=f"{HOOKS}: {reason.what}")
    adopt_parts(module, path)
    call_log.note(Decision(path, "pruned", "pytorch", str(reason)))
    result = plain(*args, **kwargs)
    capture.refuse(module, reason)
    return result


def tell(module: nn.Module, capture: Capture, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    ran = take_last_run()
    if ran is None:  # its forward has no op
        return
    decisions = ran.plan.told_at(state_of(module).path)
    again, capture.last = ran.plan is capture.last, ran.plan  # one odd call says nothing of those to come
    capture.left = DenseCall(module, args, kwargs, ran.masks, decisions) if again and not ran.plan.has_regions else None
    call_log.note(*decisions)


def adopt(module: nn.Module, path: str) -> list[str]:
    """Have the topmost of `module` and its parts that hold masks captured; the paths of these."""
    if not holds_masks(module):
        return []
    if not hasattr(type(module), "forward") or isinstance(module, (nn.ModuleList, nn.ModuleDict)):  # is never called
        return adopt_parts(module, path)
    put_before(module, Pruned)
    state_of(module).path = path
    pruned_state(module)
    return [path]


def adopt_parts(module: nn.Module, path: str) -> list[str]:
    return [p for name, child in module.named_children() for p in adopt(child, under(path, name))]


def holds_pruned(module: nn.Module) -> bool:
    return any(isinstance(child, LAYERS) and is_masked(child) for child in module.modules())


def holds_masks(module: nn.Module) -> bool:
    """Of pruned layers, or such as a forward may multiply weights by."""
    return holds_pruned(module) or any(map(may_mask_in_forward, module.modules()))
