"""The loss that a training step returns: a number to look at, whose gradients are in `.grad` already."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bppsa.errors import WorkerError


class StepLoss(Tensor):
    """A tensor [] without a graph. Whatever is computed from it, and a copy or a pickle of it, is a plain tensor.

    metrics: what `loss_fn` gave beside the loss, in the order of micro-batches: tensors with rows in dimension 0 are
    concatenated, numbers and tensors [] become a tensor [micro-batches], anything else a list; None where it gave none.
    weights: what each micro-batch's loss counts by, so that `metrics["x"] @ weights` is the batch's mean of the same.
    """

    metrics: Any = None
    weights: Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Raises WorkerError, where a plain tensor would say that it does not require a gradient."""
        raise WorkerError(
            "step() has run the backward: its gradients are in .grad, and the loss it returns is a number to look at; "
            "leave .backward() out and call optimizer.step(), or call the model as a module for outputs to "
            "differentiate"
        )

    @property
    def plain(self) -> Tensor:
        return self.as_subclass(Tensor)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.plain)

    def __format__(self, form: str) -> str:
        return self.plain.__format__(form)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.plain.__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain.__reduce_ex__(protocol)
