"""Bring stores of several axes together, so that one loop over a matrix serves all that a step does with it.

Each store is done as early as it may; two passes over the same axes then stand at two levels although the first could
wait for what the second needs. And a store whose axes are fewer, some being one axis to it, gets those of the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from bppsa.codegen.assembling.group import Grouping
from bppsa.codegen.language.expr import Shape
from bppsa.codegen.language.ir import Group
from bppsa.codegen.lowering.axes import refined, subdivided
from bppsa.codegen.lowering.roots import Root
from bppsa.codegen.lowering.row import RowSegment


def grouped(make: Callable[[], Grouping], roots: Sequence[Root]) -> tuple[Group, ...]:
    """`make` gives a grouping that has seen no roots."""
    roots = with_common_axes(roots)
    delays: dict[Root, int] = {}
    if sum(bool(root.shape) for root in roots) > 1:
        delays = waiting(make, roots)
    return replace(make(), delays=delays).run(roots)


def with_common_axes(roots: Sequence[Root]) -> list[Root]:
    """The roots with axes as fine as those of any other root of as many columns, where they fit."""
    shapes: dict[int, Shape] = {}
    for root in roots:
        if root.shape:
            known = shapes.setdefault(root.width, root.shape)
            shapes[root.width] = common(known, root.shape)
    return [cut(root, shapes[root.width]) if root.shape else root for root in roots]


def common(one: Shape, other: Shape) -> Shape:
    fine = subdivided(one, other)
    return one if fine is None else fine


def cut(root: Root, shape: Shape) -> Root:
    """The root with such axes, or as it is where its own do not fit."""
    if root.shape == shape or subdivided(root.shape, shape) != shape:
        return root
    value = refined(RowSegment(root.width, root.value, root.shape), shape)
    assert value is not None
    if root.target.broadcast:
        return replace(root, value=value.expr, shape=shape)
    strides = refined_strides(root.target.strides, root.shape, shape)
    return replace(root, value=value.expr, shape=shape, target=replace(root.target, strides=strides))


def refined_strides(strides: Shape, old: Shape, fine: Shape) -> Shape:
    found: list[int] = []
    rest = list(fine)
    for stride, size in zip(strides, old, strict=True):
        part: list[int] = []
        while size != 1:
            part.append(rest.pop(0))
            size //= part[-1]
        inner = 1
        steps = []
        for n in reversed(part):
            steps.append(stride * inner)
            inner *= n
        found += reversed(steps)
    return tuple(found)


def waiting(make: Callable[[], Grouping], roots: Sequence[Root]) -> dict[Root, int]:
    """How long stores wait so that fewer groups go over the same axes."""
    delays: dict[Root, int] = {}
    homes = homes_of(make, roots, delays)
    for shape in dict.fromkeys(root.shape for root in roots if root.shape):
        levels = sorted({level for level, extent in homes.values() if extent == shape})
        for early, late in itertools.pairwise(levels):
            moved = {root: late for root, home in homes.items() if home == (early, shape)}
            trial = homes_of(make, roots, delays | moved)
            if passes(trial) < passes(homes):
                delays, homes = delays | moved, trial
    return delays


def homes_of(make: Callable[[], Grouping], roots: Sequence[Root], delays: dict[Root, int]) -> dict[Root, tuple]:
    grouping = replace(make(), delays=delays)
    for root in roots:
        grouping.fill(root)
    return {root: grouping.home(root) for root in roots}


def passes(homes: dict[Root, tuple]) -> int:
    return len({home for home in homes.values() if isinstance(home[1], tuple)})
