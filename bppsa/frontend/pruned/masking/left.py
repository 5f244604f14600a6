"""Calls that PyTorch runs: they are right whatever has changed, so only what may make kernels gain is looked at.

All else (hooks, flags, parts, other masks in the place of these) is noticed when all is looked at again, a few calls
later: small networks would spend a tenth of their time on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bppsa.decisions import Decision
from bppsa.frontend.pruned.masking.marks import marks
from bppsa.runtime.untraced import untraced

CALLS = 16  # until all is looked at again


class DenseCall:
    """A call that was left to PyTorch. masks: of the modules as it has found them."""

    def __init__(
        self,
        root: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        masks: Sequence[Tensor],
        decisions: list[Decision],
    ) -> None:
        self.decisions = decisions
        self._masks, self._marks, self._calls = masks, marks(masks), CALLS
        self._form = form(root, args, kwargs)

    @untraced
    def holds(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this call is left too, without looking any further."""
        self._calls -= 1
        return self._calls > 0 and form(root, args, kwargs) == self._form and marks(self._masks) == self._marks


def form(root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    given = (*args, *kwargs.values()) if kwargs else args
    return torch.is_grad_enabled(), root.training, *[(type(x), getattr(x, "shape", None)) for x in given]
