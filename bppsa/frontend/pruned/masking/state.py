"""What bppsa keeps in a module of a pruned network, in its record (`bppsa.frontend.state`)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from bppsa.errors import Reason
from bppsa.frontend.pruned.masking.left import DenseCall
from bppsa.frontend.state import state_of

SOON = 32  # calls after a refusal until the forward is tried again; each time it takes twice as many
SHARE = 0.05  # of the time at most that such trials take


@dataclass(eq=False)
class Refused:
    """Why a forward is not captured. hooked: its parts had backward hooks. wait: calls between two trials. calls: that
    are left until the next. until: the time before which there is none."""

    reason: Reason
    hooked: bool
    wait: int
    calls: int
    until: float

    def ends(self, module: nn.Module) -> bool:
        """Whether this call may try again: the user may have mended what was the reason."""
        self.calls -= 1
        due = self.calls <= 0 and time.monotonic() >= self.until
        return due or (self.hooked and not has_backward_hooks(module))


def has_backward_hooks(module: nn.Module) -> bool:
    return any(part._backward_hooks or part._backward_pre_hooks for part in module.modules() if part is not module)


@dataclass(eq=False)
class Capture:
    """What is known of the captured forward of a module, which `run` calls.

    names: of its attributes, when it was captured, which it is in its first call. captures: how often it has been since
    these were others. seconds: that its captures have taken. refused: in which modes (training, with gradients) it is
    not captured. left: calls that PyTorch runs. last: the plan of the last call.
    """

    names: Any
    run: Any = None
    captures: int = 1
    seconds: float = 0.0
    refused: dict[tuple[bool, bool], Refused] = field(default_factory=dict)
    left: DenseCall | None = None
    last: Any = None

    def refuse(self, module: nn.Module, reason: Reason) -> None:
        """Captures nothing in the mode of this call for a while, for longer if it is not the first time."""
        mode = mode_of(module)
        before = self.refused.get(mode)
        wait = SOON if before is None else 2 * before.wait
        until = time.monotonic() + self.seconds / SHARE
        self.refused[mode] = Refused(reason, has_backward_hooks(module), wait, wait, until)

    def refusal(self, module: nn.Module) -> Reason | None:
        """Why this call is not to be captured; None where it is to be tried."""
        refused = self.refused.get(mode_of(module))
        return None if refused is None or refused.ends(module) else refused.reason


def mode_of(module: nn.Module) -> tuple[bool, bool]:
    return module.training, torch.is_grad_enabled()


@dataclass(eq=False)
class PrunedState:
    """mask: bool, on the CPU, that was given for the weight of a layer: no buffer, which a state or `to_empty` would
    reach. made: names of the products that a layer's hooks have made for the call that is under way, where other hooks
    may change them; None otherwise. calls: how many such calls are under way. A copy keeps the mask alone."""

    capture: Capture | None = None
    mask: Tensor | None = None
    made: set[str] | None = None
    calls: int = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"capture": None, "mask": self.mask, "made": None, "calls": 0}

    def of_clone(self) -> PrunedState:
        return replace(self, capture=None, made=None, calls=0)


def pruned_state(module: nn.Module) -> PrunedState:
    """The module's, which is made where there is none."""
    state = state_of(module)
    if state.pruned is None:
        state.pruned = PrunedState()
    found: PrunedState = state.pruned
    return found
