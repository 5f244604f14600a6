"""Memory and first values for what a process owns of a model that was built on the meta device."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from hashlib import blake2b

import torch
from torch import Tensor, nn

from bppsa.runtime.worker.shell import holder, named_tensors


def fill(model: nn.Module, names: Collection[str], device: torch.device, seed: int) -> None:
    """Puts tensors in the place of the meta tensors of these names, and has their modules reset them.

    A module's values depend on `seed` and its path alone, so replicas on several ranks are equal; they are not those
    that building the model on a device gives. A module without `reset_parameters` is left with what was in memory, and
    a warning says so.
    """
    filled: dict[int, Tensor] = {}  # by identity, as tied weights are one tensor
    modules: dict[nn.Module, str] = {}
    for name, tensor in named_tensors(model).items():
        if name in names and tensor.is_meta:
            if id(tensor) not in filled:
                room = torch.empty_like(tensor, device=device)
                filled[id(tensor)] = (
                    nn.Parameter(room, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else room
                )
            module, attribute = holder(model, name)
            setattr(module, attribute, filled[id(tensor)])
            modules.setdefault(module, name.rpartition(".")[0])
    for module, path in modules.items():
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if reset is None:
            warnings.warn(
                f"{path or 'the model'} ({type(module).__name__}) was built on the meta device and has no "
                f"reset_parameters: its values are undefined until load_state_dict",
                stacklevel=2,
            )
            continue
        with torch.random.fork_rng():
            torch.manual_seed(int.from_bytes(blake2b(f"{seed} {path}".encode(), digest_size=7).digest(), "little"))
            reset()
