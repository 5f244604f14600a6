"""Places of one memory, of which a view is one: they are a tree, and some of one parent are known to be apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from bppsa.fxpasses.reroll.log.ops import LoggedOp, LoggedValue

aten = torch.ops.aten
Span = tuple[int, int, int]  # dim, start and end of a slice


class MemoryPlace:
    __slots__ = (
        *("children", "detached", "divided", "given", "group", "item", "like", "parent"),
        *("span", "stale", "value", "view", "written"),
    )

    def __init__(self, like: LoggedValue, parent: MemoryPlace | None, view: LoggedOp | None, item: int = 0) -> None:
        self.like, self.parent, self.view, self.item = like, parent, view, item
        self.value = like
        self.detached: LoggedValue | None = None  # of the same memory, without its gradient
        self.divided = False  # whether there has been such a value
        self.given: bool = parent.given if parent is not None else like.given is not None
        self.stale = False
        self.children: dict[Any, list[MemoryPlace]] = {}  # those of one group are disjoint, by what they are views
        self.span = span_of(view, parent.like.shape) if view is not None and parent is not None else None
        self.group = group_of(view, self.span) if view is not None else None
        self.written: dict[MemoryPlace, None] = {}  # children written to since this value was made, in that order
        if parent is not None:
            parent.children.setdefault(self.group, []).append(self)

    def spoil(self) -> None:
        self.stale, self.detached = True, None
        self.written.clear()
        for child in self.below():
            if not child.stale or child.written:
                child.spoil()

    def below(self) -> Iterator[MemoryPlace]:
        return (child for group in self.children.values() for child in group)

    def lineage(self) -> Iterator[Any]:
        """It, what it is a view of, and so on, but for the memory's own place."""
        place = self
        while place.parent is not None:
            yield place
            place = place.parent

    def meeting(self) -> Iterator[MemoryPlace]:
        """Other views of the same place, which may have bytes of it."""
        assert self.parent is not None
        for group, members in self.parent.children.items():
            if group != self.group or group is None:
                yield from (member for member in members if member is not self)
            elif self.span is not None:
                yield from (member for member in members if member is not self and member.overlaps(self.span))

    def overlaps(self, span: Span) -> bool:
        """Whether it is a slice that has some of another one along the same dim."""
        return self.span is not None and self.span[1] < span[2] and span[1] < self.span[2]

    @property
    def index(self) -> tuple[int, int] | None:
        """Dim and index, where it is one slice of what it is a view of."""
        if self.view is None or self.view.target not in (aten.select.int, aten.unbind.int):
            return None
        assert self.parent is not None
        dim, *rest = self.view.leaves[1:] or (0,)
        dim, at = dim % len(self.parent.like.shape), rest[0] if rest else self.item
        return dim, at % self.parent.like.shape[dim]


def span_of(view: LoggedOp, shape: Sequence[int]) -> Span | None:
    """The span of a slice that leaves nothing out; None for other views."""
    if view.target is not aten.slice.Tensor:
        return None
    given = list(view.leaves[1:])
    dim, start, end, step = given + [0, None, None, 1][len(given) :]
    first, last, _ = slice(start, end).indices(shape[dim])
    return (dim % len(shape), first, last) if step == 1 else None


def group_of(view: LoggedOp, span: Span | None) -> Any:
    """Views with one key are disjoint where they are not one place, slices where their spans are."""
    if span is not None:
        return "slice", span[0]
    if view.target is aten.select.int:
        return "select", view.leaves[1]
    return view if not view.single else object()


def whole_of(slices: Sequence[MemoryPlace], place: MemoryPlace) -> list[Any]:
    """Slices of a place in their order, where together they are all of it; none where they are not."""
    spans = {piece.span: piece for piece in slices if piece.span is not None}
    dims = {dim for dim, _, _ in spans}
    if len(spans) < len(slices) or len(dims) != 1:
        return []
    ordered, size = sorted(spans), place.like.shape[dims.pop()]
    is_whole = [*(first for _, first, _ in ordered), size] == [0, *(last for _, _, last in ordered)]
    return [spans[span] for span in ordered] if is_whole else []
