"""How dense the layers of a plan were when it was made.

Masks that have become sparser or denser since are worth another plan (pruning by and by), those that move (SET, RigL)
are not.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from bppsa._pruned.masks import LAYERS, Layer, Weight, kept, marks, weight_of
from bppsa.errors import Unsupported

MOVED = 0.1  # of the kept weights that a plan was made for


@dataclass(eq=False)
class Density:
    layer: Layer
    planned: int  # kept weights
    weight: Weight
    marks: list[int]

    def has_moved(self) -> bool:
        """Looks at the masks only if they have changed since it was last asked."""
        weight = weight_of(self.layer)
        marked = marks(weight.masks)
        if marked == self.marks and weight.has_masks_of(self.weight):
            return False
        self.weight, self.marks = weight, marked
        return abs(count(weight) - self.planned) > MOVED * self.planned


def densities(root: nn.Module) -> list[Density]:
    found = []
    for layer in root.modules():
        if isinstance(layer, LAYERS):
            try:
                weight = weight_of(layer)
                found.append(Density(layer, count(weight), weight, marks(weight.masks)))
            except Unsupported:  # no plan depends on it
                continue
    return found


def have_moved(seen: list[Density]) -> bool:
    try:
        return any([density.has_moved() for density in seen])
    except Unsupported:  # said by the region that it is in
        return False


def count(weight: Weight) -> int:
    return int(kept(weight, "").count_nonzero())
