"""Whether a value is made of those that two parts of its steps, or rows, give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

TOLERANCE = 1e-9  # of float64, relative to the largest


class NoAxis:
    """What a value is that is neither its parts side by side nor the second part's."""


NO_AXIS = NoAxis()


def halves(leaves: Sequence[Any], axes: Sequence[int | None]) -> tuple[list[Any], list[Any]]:
    """The leaves of two parts, not equally long where that can be. axes: where each is cut; what is not cut, or has a
    single step, is in both."""

    def parts(leaf: Any, axis: int | None) -> tuple[Any, Any]:
        if axis is None or leaf.shape[axis] < 2:
            return leaf, leaf
        behind = max(1, (leaf.shape[axis] - 1) // 2)
        first, second = leaf.split([leaf.shape[axis] - behind, behind], axis)
        return first, second

    pairs = [parts(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True)]
    return [first for first, _ in pairs], [second for _, second in pairs]


def axis_of(whole: Any, first: Any, second: Any) -> int | NoAxis | None:
    """Along which the whole is the two parts side by side; None: the second part's value is the whole's."""
    if isinstance(whole, Tensor) and whole.dim() == first.dim() == second.dim():
        for axis in range(whole.dim()):
            if whole.shape[axis] != first.shape[axis]:
                return axis if is_cat(whole, first, second, axis) else NO_AXIS
    return None if are_close(whole, second) else NO_AXIS


def is_cat(whole: Tensor, first: Tensor, second: Tensor, axis: int) -> bool:
    shapes = [list(tensor.shape) for tensor in (whole, first, second)]
    sizes = [shape.pop(axis) for shape in shapes]
    fits = shapes[0] == shapes[1] == shapes[2] and sizes[0] == sizes[1] + sizes[2]
    return fits and are_close(whole, torch.cat([first, second], axis))


def are_close(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor):
        return type(a) is type(b) and bool(a == b)
    if not isinstance(b, Tensor) or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    scale = float(a.abs().amax().nan_to_num()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=TOLERANCE * scale, equal_nan=True)
