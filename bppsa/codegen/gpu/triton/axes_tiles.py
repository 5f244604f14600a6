"""Values of several axes as register tiles: a dimension an axis, as wide as the next power of two.

A tile is 1 wide along an axis along which its value does not change. Neighbouring axes along which everything in a
group moves as along one are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from bppsa.codegen.language.expr import Access, Shape, Strides
from bppsa.codegen.language.ir import FOLDS, Group, Store

Moves = tuple[tuple[int, int], ...]  # (size, stride) of each axis along which an access moves, outermost first


def tile_size(size: int) -> int:
    """The size of a tile along an axis: Triton's shapes are powers of two."""
    return 1 << (size - 1).bit_length()


@dataclass(frozen=True)
class ColumnSet:
    """The columns of a buffer that an access touches, in the order of the group's elements, axes merged where they
    go on as one."""

    buffer: str
    after: bool
    column: int
    moves: Moves
    unit: int = 0  # how far the columns of a unit are from those of the one before
    units: int = 1

    def span(self, *, of_all: bool = False) -> tuple[int, int]:
        """[start, stop) around them; of_all: around those of all units."""
        ends = [stride * (size - 1) for size, stride in (*self.moves, *[(self.units, self.unit)] * of_all)]
        return self.column + sum(min(e, 0) for e in ends), self.column + sum(max(e, 0) for e in ends) + 1

    def meets(self, other: ColumnSet) -> bool:
        if (self.buffer, self.after) != (other.buffer, other.after):
            return False
        of_all = self.unit != other.unit
        (low, high), (start, stop) = self.span(of_all=of_all), other.span(of_all=of_all)
        return low < stop and start < high


@dataclass(frozen=True)
class AxesTile:
    """A variable. sizes: what its moving axes hold; the variable itself may have more dimensions, of 1. in_parts: there
    is none, what it would hold is read from memory part by part."""

    name: str
    shape: Shape
    sizes: Shape
    in_parts: bool = False

    def fits(self, sizes: Shape) -> bool:
        """Whether the same elements stand in the same order in a tile of axes of other sizes: what is padded must be
        the outermost alone."""
        exact = all(tile_size(n) == n for n in (*self.sizes[1:], *sizes[1:]))
        return self.sizes == sizes or (exact and prod(map(tile_size, sizes)) == prod(map(tile_size, self.sizes)))


class GroupAxes:
    """A group's axes, as few as its accesses allow, and how each access moves along them. cut: the axis of which each
    of `units` programs has a part."""

    def __init__(self, group: Group, cut: int | None, units: int) -> None:
        accesses = [node.payload for node in group.nodes() if isinstance(node.payload, Access)]
        strides: dict[Access | Store, Strides] = {access: moving(access, group) for access in accesses}
        strides |= {store: moving(store.target, group, store) for store in group.stores}
        # A product's columns are consecutive, so that a group that has one is of one axis anyway.
        shape = list(group.shape or (group.width,))
        self.unit, self.units = dict.fromkeys(strides, 0), units
        if cut is not None:
            shape[cut] //= units
            self.unit = {key: own[cut] * shape[cut] for key, own in strides.items()}
        kept = merged(tuple(shape), list(strides.values()))
        self.shape: Shape = tuple(size for size, _ in kept) or (1,)
        self.strides = {key: tuple(own[a] for _, a in kept) or (0,) for key, own in strides.items()}

    @property
    def padded(self) -> Shape:
        return tuple(map(tile_size, self.shape))

    def tile_shape(self, strides: Strides) -> Shape:
        return tuple(p if stride else 1 for p, stride in zip(self.padded, strides, strict=True))

    def sizes(self, strides: Strides) -> Shape:
        return tuple(size for size, stride in zip(self.shape, strides, strict=True) if stride)

    def columns(self, access: Access, key: Access | Store, *, after: bool) -> ColumnSet:
        """key: of the access in `strides`."""
        moves: list[tuple[int, int]] = []
        for size, stride in zip(self.shape, self.strides[key], strict=True):
            if not stride:
                continue
            if moves and moves[-1][1] == size * stride:
                moves[-1] = moves[-1][0] * size, stride
            else:
                moves.append((size, stride))
        return ColumnSet(access.buffer, after, access.column, tuple(moves), self.unit[key], self.units)


def moving(access: Access, group: Group, store: Store | None = None) -> Strides:
    """How far the access moves along each of the group's axes."""
    if group.shape:
        return access.strides or (0,) * len(group.shape)
    still = access.broadcast or (store is not None and store.reduce in FOLDS)
    return (0,) if still else (1,)


def merged(shape: Shape, strides: Sequence[Strides]) -> list[tuple[int, int]]:
    """(size, the innermost of the axes that are one) of what is left, without axes of size 1."""
    axes = [a for a, size in enumerate(shape) if size != 1]
    found: list[tuple[int, int]] = [(shape[a], a) for a in axes[:1]]
    for before, a in pairwise(axes):
        if all(own[before] == own[a] * shape[a] for own in strides):
            found[-1] = found[-1][0] * shape[a], a
        else:
            found.append((shape[a], a))
    return found
