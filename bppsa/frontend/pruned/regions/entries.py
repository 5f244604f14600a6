"""The kept entries of a layer's weight, made anew where its mask has become another one."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import NamedTuple

import torch
from torch import Tensor

from bppsa.codegen.sparse_conv.window import Window
from bppsa.frontend.pruned.masking.marks import marks
from bppsa.frontend.pruned.masking.masks import kept
from bppsa.runtime.sparse_conv.entries import Entries


class Shown(NamedTuple):
    """Masks, what tells whether they have been changed in place since, and how many weights they keep."""

    masks: tuple[Tensor, ...]
    marks: list[int]
    keep: int


class KeptEntries:
    """The entries of one layer of one graph, for one geometry and dtype.

    A call shows the masks that it has before it asks for the entries. To make these takes milliseconds, so they are
    made when they are asked for, and held until other masks are shown.
    """

    def __init__(self, path: str, shape: torch.Size, window: Window, groups: int, dtype: torch.dtype) -> None:
        """shape: of the weight, [N, C / groups, height, width] or [N, C]."""
        self.path, self.shape, self.window, self.groups, self.dtype = path, shape, window, groups, dtype
        self._shown: Shown | None = None
        self._made: tuple[Shown, Entries] | None = None

    def show(self, masks: Sequence[Tensor]) -> int:
        """How many weights they keep. Raises Unsupported for a mask that cannot be used."""
        shown, marked = self._shown, marks(masks)
        if shown is None or marked != shown.marks or not all(map(is_, masks, shown.masks)):
            count = int(kept(masks, self.shape, self.path).count_nonzero())
            shown = self._shown = Shown(tuple(masks), marked, count)
        return shown.keep

    def __call__(self) -> Entries:
        """The entries of the masks shown last."""
        shown, made = self._shown, self._made
        assert shown is not None, "masks are shown first"
        if made is None or made[0] is not shown:
            bits = kept(shown.masks, self.shape, self.path)
            bits = bits if bits.dim() == 4 else bits[..., None, None]
            made = self._made = shown, Entries(bits, self.window, self.groups, self.dtype)
        return made[1]
