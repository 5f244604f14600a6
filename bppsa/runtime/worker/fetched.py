"""Weights that another worker owns: memory for them from a fetch to the end of the last job that needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class Fetched:
    """Holds weights of a stage that another worker owns. tensors: by the model's names, leaves that stay the same;
    their memory comes and goes.

    What a forward keeps for its backward refers to these leaves, and finds the same values in them when the weights
    have been fetched again: they do not change within a step. So nothing of them is held in between.
    """

    def __init__(self, like: Mapping[str, Tensor], device: torch.device | None) -> None:
        """like: tensors of the same shapes and dtypes, in the order in which their owner sends them."""
        plain = {name: torch.empty(t.shape, dtype=t.dtype, device=device) for name, t in like.items()}
        self.storages = [tensor.untyped_storage() for tensor in plain.values()]
        self.sizes = [storage.nbytes() for storage in self.storages]
        self.tensors = {
            name: nn.Parameter(t, like[name].requires_grad) if isinstance(like[name], nn.Parameter) else t
            for name, t in plain.items()
        }
        # Written through tensors of their own: what autograd has saved counts changes, and would refuse these.
        self.writable = [
            torch.empty(0, dtype=t.dtype, device=device).set_(t.untyped_storage(), 0, t.shape, t.stride())
            for t in plain.values()
        ]
        self.free()

    def room(self) -> Sequence[Tensor]:
        """Where to write what comes."""
        for storage, size in zip(self.storages, self.sizes, strict=True):
            storage.resize_(size)
        return self.writable

    def filled(self, written: Sequence[Tensor]) -> None:
        """written: the tensors of `room`, which require a gradient where their owner's do now."""
        for tensor, source in zip(self.tensors.values(), written, strict=True):
            tensor.requires_grad_(source.requires_grad)

    def free(self) -> None:
        for storage in self.storages:
            storage.resize_(0)
