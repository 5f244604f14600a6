"""Stand-ins for tensors: what an op gives for them, and how they are left behind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from bppsa.errors import Unsupported
from bppsa.fxpasses.recording.aliases import geometry
from bppsa.fxpasses.theirs import theirs

aten = torch.ops.aten
# Of integers a zero is an error here.
DIVIDES = {aten.remainder.Tensor, aten.fmod.Tensor, aten.floor_divide.default, aten.div.Tensor_mode}


def zeros_like(tensor: Tensor) -> Tensor:
    """A stand-in, made out of sight of the recorder."""
    with _disable_current_modes():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


def seen_apart(tensor: Tensor) -> Tensor:
    """Another tensor over the same memory. Where somebody holds what torch.zeros and its kin have made, they return a
    detached one instead, which could not be told from what a user detaches."""
    with _disable_current_modes():
        return tensor.data


def tried(func: Any, stand_ins: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What the op gives for zeros, or for ones or identities where it has an error for zeros."""
    if func in DIVIDES and isinstance(stand_ins[1], Tensor) and not stand_ins[1].is_floating_point():
        stand_ins = (stand_ins[0], torch.ones_like(stand_ins[1]), *stand_ins[2:])
    for given in (stand_ins, tree_map_only(Tensor, regular, stand_ins)):
        try:
            return theirs(func, *given, **options)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            failed = error
    raise Unsupported("fails for some values of a tensor", op=str(func)) from failed


def regular(stand_in: Tensor) -> Tensor:
    """The identity in place of the zeros that stand for matrices."""
    square = stand_in.dim() > 1 and stand_in.shape[-1] == stand_in.shape[-2]
    return torch.eye(stand_in.shape[-1], dtype=stand_in.dtype).expand_as(stand_in) if square else stand_in


def detach_stand_ins(graph: fx.Graph) -> None:
    """What autograd noted of them leads to the tensors that the function closed over, and would keep them alive. A view
    from before a change in place and one from after it stand at one place: who reads the graph tells nodes apart by
    their stand-ins, so the second gets another."""
    places = set()
    with _disable_current_modes():
        for node in graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, Tensor):
                value = value.detach()
                if geometry(value) in places:
                    value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_()
                places.add(geometry(value))
                node.meta["val"] = value
