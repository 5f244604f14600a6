"""Run a model for what can be learnt from it, and leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from bppsa.errors import PartitionError
from bppsa.fxpasses.models import restore, state_of


@contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """The model's buffers, modes and attributes, and the random state, are as before afterwards.

    Raises PartitionError where an attribute was changed: stages do not share attributes.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone(), version(buffer)) for buffer in model.buffers()]
    attributes = [state for state in state_of(model) if "_bppsa" not in state[0]]  # what our own modules remember
    fastpath = torch.backends.mha.get_fastpath_enabled()  # of transformers: kernels that no training step runs
    try:
        with torch.random.fork_rng():
            torch.backends.mha.set_fastpath_enabled(False)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        for module, training in modes:
            module.training = training
        changed = restore(attributes)
        with torch.no_grad():
            for buffer, before, number in buffers:
                if number is None or buffer._version != number:
                    buffer.copy_(before)
    if changed:
        raise PartitionError(
            f"the forward of {changed} changes an attribute, which other stages do not see; keep state in buffers"
        )


def version(buffer: torch.Tensor) -> int | None:
    """None where PyTorch does not count changes."""
    return None if buffer.is_inference() else buffer._version
