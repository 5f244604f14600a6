"""The recorder of a cell, which takes truth values that Python reads, as `assert h.isfinite().all()` does.

A recording has no values: `all` is taken to be true, and `any` to be false, as the checks of torch.distributions have
them too. Whether they are is told after each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from bppsa.fxpasses.cell.own_gradients import SlopeRecorder
from bppsa.fxpasses.recording.row_elements import made_by

aten = torch.ops.aten
# What these are of tells as much as their truth value, and may have a row for each of the batch.
OF_ALL = {aten.all.default, aten._is_all_true.default}
OF_ANY = {aten.any.default, aten._is_any_true.default}


class CellRecorder(SlopeRecorder):
    """Records a cell. truths: of what is read, what all entries have to be."""

    def __init__(self) -> None:
        super().__init__()
        self.truths: dict[fx.Node, bool] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict | None = None) -> Any:
        if func is aten._local_scalar_dense.default:
            node = made_by(self.node_of(args[0]))
            if node.target in OF_ALL | OF_ANY:
                return self.truths.setdefault(node.args[0], node.target in OF_ALL)
        return super().__torch_dispatch__(func, types, args, kwargs)
