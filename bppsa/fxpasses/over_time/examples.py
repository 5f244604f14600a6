"""Which axes of a call's arguments may be time and rows, and the short example to try them with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor, nn

from bppsa.common.stages import Axes

STEPS, ROWS = 12, 5  # of the examples
GUESSES = 16  # by each tensor


def guesses(leaves: Sequence[Any], recurrent: Sequence[nn.RNNBase]) -> Iterator[tuple[Axes, ...]]:
    """The axes of each leaf, the likeliest first. recurrent: those of the model, in its order.

    The largest tensor has an axis of time, unless it looks like an initial state. Where others have as many steps or
    rows along an axis, that is theirs.
    """
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0]
    tensors.sort(key=lambda leaf: (any(is_like_a_state(leaf, of) for of in recurrent), -leaf.numel()))
    for longest in tensors:
        yield from islice(guesses_by(longest, leaves, int(recurrent[0].batch_first)), GUESSES)


def is_like_a_state(leaf: Tensor, of: nn.RNNBase) -> bool:
    layers = of.num_layers * (1 + of.bidirectional)
    return leaf.shape[0] == layers and leaf.shape[-1] in (of.hidden_size, of.proj_size)


def guesses_by(longest: Tensor, leaves: Sequence[Any], usual: int) -> Iterator[tuple[Axes, ...]]:
    for time in sorted(range(longest.dim()), key=lambda axis: (axis != usual, axis)):
        rows = longest.shape[int(time == 0)] if longest.dim() > 1 else None
        yield from product(*(places(leaf, longest.shape[time], rows, time) for leaf in leaves))


def places(leaf: Any, steps: int, rows: int | None, usual: int) -> list[Axes]:
    """The axes on which a leaf may have so many steps and rows: nowhere at last, as a state has no steps."""
    if not isinstance(leaf, Tensor):
        return [Axes()]
    times: list[int | None] = [axis for axis in range(leaf.dim()) if leaf.shape[axis] == steps]
    times.sort(key=lambda axis: axis != usual)
    found = []
    for time in (*times, None):
        across = [axis for axis in (0, 1) if axis != time and axis < leaf.dim() and leaf.shape[axis] == rows]
        if time is None and leaf.dim() == 3:
            across.reverse()  # a state, [L, B, n]
        found.append(Axes(time, across[0] if across else None))
    return found


def shortened(leaf: Any, axes: Axes) -> Any:
    """The first of its steps and rows; two rows where there is one, which would not show what becomes of others."""
    for axis, most in ((axes.time, STEPS), (axes.rows, ROWS)):
        if axis is not None:
            leaf = leaf.narrow(axis, 0, min(most, leaf.shape[axis]))
    if axes.rows is not None and leaf.shape[axes.rows] == 1:
        leaf = torch.cat([leaf, leaf.flip(leaf.dim() - 1 if axes.time is None else axes.time)], axes.rows)
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def is_one_step(leaves: Sequence[Any], axes: Sequence[Axes]) -> bool:
    return any(of.time is not None and leaf.shape[of.time] == 1 for leaf, of in zip(leaves, axes, strict=True))
