"""The recorder of a cell, which takes truth values that Python reads, as `assert h.isfinite().all()` does, and
gradients that the cell takes itself: fast weights learn by them, and the slope of an energy moves a state.

A recording has no values: `all` is taken to be true, and `any` to be false, as the checks of torch.distributions have
them too, but for those that are said to be otherwise. Whether they are is told after each run. What autograd does for a
gradient are ops as all others.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.common.graph import tensors_in
from bppsa.errors import Unsupported
from bppsa.fxpasses.cell.own_gradients import SlopeRecorder
from bppsa.fxpasses.recording.capture import check_gradients
from bppsa.fxpasses.recording.row_elements import made_by
from bppsa.fxpasses.theirs import theirs

aten = torch.ops.aten
# The operand of these tells as much as their truth value does, and may have a row for each of the batch.
OF_ALL = {aten.all.default, aten._is_all_true.default}
OF_ANY = {aten.any.default, aten._is_any_true.default}

GRAD = "torch.autograd.grad"
WITHIN = "take it of a tensor that the step computes, as torch.cat of its carries, or use torch.func.grad"


@dataclass(frozen=True)
class Truth:
    """A truth value that Python reads. of_all: of all entries together, or of any of them. value: what it is taken to
    be."""

    of_all: bool
    value: bool

    def holds(self, entries: Tensor) -> Tensor:
        """entries: [T, ...] -> bool [T], whether it is so in each step."""
        rows = entries.reshape(len(entries), -1)
        return (rows.all(1) if self.of_all else rows.any(1)) == self.value


class CellRecorder(SlopeRecorder):
    """Records a cell. alone: how many tensors it is given where it has one carry. otherwise: numbers of truth values
    that are not as usual. without: numbers of the given tensors that have no gradient. truths: by what they are of, and
    whether of all of it. asks: whether the cell asks for gradients."""

    def __init__(
        self, alone: int, otherwise: Container[int] = (), hooks: bool = True, without: Container[int] = ()
    ) -> None:
        super().__init__(hooks)
        self.alone, self.otherwise, self.without = alone, otherwise, without
        self.truths: dict[tuple[fx.Node, bool], Truth] = {}
        self.asks = False

    def watched(self, value: Tensor, node: fx.Node) -> Tensor:
        return value if len(self.graph.nodes) - 1 in self.without else super().watched(value, node)

    def asked(self, name: str, truth: Any) -> Any:
        self.asks = True
        return truth if name == "requires_grad" else super().asked(name, truth)

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict | None = None) -> Any:
        if func is aten._local_scalar_dense.default:
            node = made_by(self.node_of(args[0]))
            if node.target in OF_ALL | OF_ANY:
                of_all = node.target in OF_ALL
                taken = Truth(of_all, of_all != (len(self.truths) in self.otherwise))
                return self.truths.setdefault((node.args[0], of_all), taken).value
        return super().__torch_dispatch__(func, types, args, kwargs)

    def grad(self, outputs: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        """Stands in for `torch.autograd.grad`. Raises `Unsupported` where a torch.autograd.Function or hooks of the
        user's have a part in it, or where autograd may go back beyond the step: through what it closes over, which the
        steps before have read too, or from one carry to another. A recording does not show these ways."""
        if all(map(torch._C._functorch.is_gradtrackingtensor, tensors_in(outputs))):  # torch.func's, from its own start
            return theirs(torch.autograd.grad, outputs, inputs, *args, **options)
        check_gradients(tensors_in(outputs), [tensor for tensor, _ in self.captured])
        if not self.hooks or self.has_others:
            raise Unsupported("takes a gradient beside torch.func, or under hooks", GRAD, "use one of them")
        before = {node for _, node in self.captured}
        carries = {node for node in self.graph.nodes if node.op == "placeholder"} - before
        for given in tensors_in(inputs):
            node = self.aliases.find(given)
            if not isinstance(node, fx.Node) or node in before or (node in carries and len(carries) > self.alone):
                raise Unsupported("takes a gradient of what may lie before the step", GRAD, WITHIN)
        return theirs(torch.autograd.grad, outputs, inputs, *args, **options)
