"""The recorder of a cell, which takes truth values that Python reads, as `assert h.isfinite().all()` does, and
gradients that the cell takes itself: fast weights learn by them, and the slope of an energy moves a state.

A recording has no values: `all` is taken to be true, and `any` to be false, as the checks of torch.distributions have
them too. Whether they are is told after each run. What autograd does for a gradient are ops as all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from bppsa.common.graph import tensors_in
from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.cell.own_gradients import SlopeRecorder
from bppsa.fxpasses.recording.capture import check_gradients
from bppsa.fxpasses.recording.row_elements import made_by
from bppsa.fxpasses.theirs import theirs

aten = torch.ops.aten
# What these are of tells as much as their truth value, and may have a row for each of the batch.
OF_ALL = {aten.all.default, aten._is_all_true.default}
OF_ANY = {aten.any.default, aten._is_any_true.default}

WITHIN = "take it of tensors that the cell computes, or of parameters"


class CellRecorder(SlopeRecorder):
    """Records a cell. truths: of what is read, what all entries have to be."""

    def __init__(self, hooks: bool = True) -> None:
        super().__init__(hooks)
        self.truths: dict[fx.Node, bool] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict | None = None) -> Any:
        if func is aten._local_scalar_dense.default:
            node = made_by(self.node_of(args[0]))
            if node.target in OF_ALL | OF_ANY:
                return self.truths.setdefault(node.args[0], node.target in OF_ALL)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def grad(self, outputs: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        """In the place of `torch.autograd.grad`. Raises Unsupported where autograd would go through the backward of a
        torch.autograd.Function, or could through what was computed before the cell: its graph is for the user's own
        backward."""
        closed_over = [tensor for tensor, _ in self.captured]
        check_gradients(tensors_in(outputs), closed_over)
        has_graph = any(tensor.grad_fn is not None for tensor in closed_over)
        if has_graph and any(given is tensor for given in tensors_in(inputs) for tensor in closed_over):
            raise Unsupported(Reason("takes a gradient of what may lie before the cell", "torch.autograd.grad", WITHIN))
        return theirs(torch.autograd.grad, outputs, inputs, *args, **options)
