"""Calls that PyTorch runs: they are right whatever has changed, so only what may make kernels gain is looked at.

All else (hooks, flags, parts, other masks in the place of these) is noticed when all is looked at again, a few calls
later: small networks would spend a tenth of their time on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from bppsa._pruned.masks import marks
from bppsa.report import Decision
from bppsa.runtime.untraced import untraced

CALLS = 16  # until all is looked at again
shape = attrgetter("shape")


class Left:
    """A call with tensors `args` that was left to PyTorch. masks: of the modules as it has found them."""

    def __init__(self, root: nn.Module, args: Sequence[Any], masks: list[Tensor], decisions: list[Decision]) -> None:
        self.decisions = decisions
        self._masks, self._marks, self._calls = masks, marks(masks), CALLS
        self._types, self._shapes = list(map(type, args)), list(map(shape, args))
        self._mode = torch.is_grad_enabled(), root.training

    @untraced
    def holds(self, root: nn.Module, args: Sequence[Any]) -> bool:
        """Whether this call is left too, without looking any further."""
        self._calls -= 1
        return (
            self._calls > 0
            and list(map(type, args)) == self._types
            and list(map(shape, args)) == self._shapes
            and (torch.is_grad_enabled(), root.training) == self._mode
            and marks(self._masks) == self._marks
        )
