"""What a call needs in common with the one that was logged: all that it may read, but numbers in tensors."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook
from torch.utils import _pytree as pytree

from bppsa.errors import Reason
from bppsa.frontend.ordinary import device_of, is_plain, unusual_moment
from bppsa.fxpasses.environment.key import exact, is_simple
from bppsa.fxpasses.environment.known import containers, known_environment
from bppsa.fxpasses.environment.trail import own_attributes
from bppsa.fxpasses.environment.walk import Environment

DTYPES = {torch.complex64, torch.complex128}
DTYPES |= {torch.float32, torch.float64, torch.bool, torch.int64, torch.int32, torch.uint8, torch.int16, torch.int8}


@dataclass(frozen=True)
class LoopCall:
    """leaves: of the arguments, and spec: what they are in. tensors: those of them that are tensors."""

    key: Hashable
    spec: Any
    leaves: Sequence[Any]
    tensors: Sequence[Tensor]
    environment: Environment

    @functools.cached_property
    def device(self) -> torch.device:
        """The GPU that it is given a tensor on, or else the CPU; of what it reads where it is given none."""
        return device_of(self.tensors or self.environment.tensors)


def unusual() -> Reason | None:
    """Why a call is left to PyTorch whatever it is given."""
    if reason := unusual_moment():
        return reason
    if _has_any_global_hook():
        return Reason("hooks of all modules")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return Reason("autocast decides dtypes op by op")
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return Reason("hooks on saved tensors, as checkpoints have them")
    return None


def call_of(root: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LoopCall | Reason:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    reason = odd(leaves)
    if reason is not None:
        return reason
    environment = known_environment(root, counts=True, given=containers(spec))
    seen: dict[int, int] = {}
    memory = [seen.setdefault(tensor.untyped_storage().data_ptr(), i) for i, tensor in enumerate(tensors)]
    shared = {first for first, tensor in zip(memory, tensors, strict=True) if tensors[first] is not tensor}
    also_read = read_as_well(tensors, environment) if not environment.memory.isdisjoint(seen) else ()
    if also_read is None:
        return Reason("an argument that shares memory with a tensor that it reads")
    given = tuple(map(described, leaves))
    modes = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
    )
    at = tuple(t.storage_offset() if first in shared else None for first, t in zip(memory, tensors, strict=True))
    deterministic = torch.are_deterministic_algorithms_enabled()
    key = environment.key, spec, given, tuple(memory), at, also_read, modes, deterministic
    return LoopCall(key, spec, leaves, tensors, environment)


def read_as_well(tensors: Sequence[Tensor], environment: Environment) -> tuple[tuple[int, int], ...] | None:
    """Which arguments are, as objects, tensors of the environment, as the state is that a layer keeps and hands out.
    None where they share memory in any other way."""
    held: dict[int, list[int]] = {}
    for at, tensor in enumerate(environment.tensors):
        if tensor.layout is torch.strided and tensor.untyped_storage().nbytes():
            held.setdefault(tensor.untyped_storage().data_ptr(), []).append(at)
    found = [(i, at) for i, tensor in enumerate(tensors) for at in held.get(tensor.untyped_storage().data_ptr(), ())]
    return tuple(found) if all(environment.tensors[at] is tensors[i] for i, at in found) else None


def odd(leaves: Sequence[Any]) -> Reason | None:
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            if not (is_plain(leaf) and leaf.dtype in DTYPES):
                what = f"a tensor of {leaf.dtype} on {leaf.device}"
                return Reason(f"{what}, which is not plain or has no kernels", mend="use float32 or float64")
            if leaf._backward_hooks:
                return Reason("an argument with hooks on its gradient")
            if own_attributes(leaf):
                return Reason(f"a tensor with attributes of its own ({', '.join(own_attributes(leaf))})")
        elif not is_simple(leaf):
            return Reason(f"an argument of type {type(leaf).__name__}", mend="give tensors, numbers and containers")
    return None


def holds_objects(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is, or holds, what is neither a tensor nor a number."""
    return not all(isinstance(leaf, Tensor) or is_simple(leaf) for leaf in pytree.tree_leaves((args, kwargs)))


def described(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad, leaf.is_inference()
    return exact(leaf)


def size_of(values: Any) -> int:
    """Numbers in tensors, and in containers of such: a measure that takes no time to speak of."""
    if isinstance(values, Tensor):
        return values.numel()
    if isinstance(values, dict):
        values = values.values()
    elif type(values) not in (tuple, list):
        return 0
    return sum(map(size_of, values))
