"""Run a model for what can be learnt from it, and leave it as it was."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from bppsa.errors import PartitionError
from bppsa.fxpasses.network.models import restore, state_of

# Held while a model runs for this or is traced: the random state, PyTorch's settings and what tracing replaces are the
# process's. Two threads at it would each put back what the other had made of them.
ALONE = threading.RLock()


@contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """The model's buffers, modes and attributes, and the random state, are as before afterwards. Other threads wait.

    Raises PartitionError where the whole model has hooks.
    """
    with ALONE:
        yield from keeping(model, set())


@contextmanager
def unchanging(model: nn.Module) -> Iterator[None]:
    """The same, and raises PartitionError where the forward changes an attribute, since stages do not share attributes.
    A layer that is always called as a whole may remember what it likes."""
    changed: set[str] = set()
    with ALONE:
        yield from keeping(model, changed)
    if changed:
        raise PartitionError(
            f"{type(model).__name__}: the forward changes {changed.pop()}, which other stages and the next micro-batch "
            f"do not see; keep state in buffers, changed in place, and return what others need"
        )


def keeping(model: nn.Module, found: set[str]) -> Iterator[None]:
    """found: is given an attribute that was changed."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers() if can_change(buffer)]
    of_layers = [entry for layer in model.modules() if isinstance(layer, nn.RNNBase) for entry in state_of(layer)]
    whole = {id(container) for _, container, _ in of_layers}
    attributes = [entry for entry in state_of(model) if id(entry[1]) not in whole]
    others = random.getstate(), np.random.get_state()
    fastpath = torch.backends.mha.get_fastpath_enabled()  # of transformers: kernels that no training step runs
    try:
        with torch.random.fork_rng(), without_reports(model), modes_kept(model.modules()):
            torch.backends.mha.set_fastpath_enabled(False)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        random.setstate(others[0])
        np.random.set_state(others[1])
        found.update(filter(None, [restore(attributes)]))
        restore(of_layers)
        with torch.no_grad():
            for buffer, before in buffers:
                if not torch.equal(buffer, before):  # batch norm's changes do not count in buffer._version
                    buffer.copy_(before)


@contextmanager
def modes_kept(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Modules are in training or in evaluation afterwards as they were before."""
    modes = [(module, module.training) for module in modules]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def is_on_meta(model: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in model.parameters())


def can_change(buffer: torch.Tensor) -> bool:
    return not buffer.is_meta and buffer.layout is torch.strided


@contextmanager
def without_reports(model: nn.Module) -> Iterator[None]:
    """Takes away our own hooks within the block, which note what each call of a compiled model does."""
    registered = (model._forward_pre_hooks, model._forward_hooks)
    before = [hooks.copy() for hooks in registered]
    for hook in (hook for hooks in before for hook in hooks.values()):
        if not getattr(hook, "__module__", "").startswith("bppsa."):
            raise PartitionError(
                f"{type(model).__name__} has hooks of its own, and no stage is the whole model; register them on its "
                f"submodules"
            )
    try:
        for hooks in registered:
            hooks.clear()
        yield
    finally:
        for hooks, original in zip(registered, before, strict=True):
            hooks.update(original)
