"""An environment in which tensors stand in the places of others, as where a module keeps its state from call to call.

A walk would find the same but for them, and the key is the same: they are of one kind, and share memory alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from torch import Tensor

from bppsa.fxpasses.environment import trail
from bppsa.fxpasses.environment.trail import Trail
from bppsa.fxpasses.environment.walk import Environment


def moved(environment: Environment, root: Any) -> Environment | None:
    """What a walk from the root would find; None where that takes a walk."""
    before = environment.trail
    now = [read(root if value is None else value) for read, value, _ in before.same]
    others = exchanged([seen for _, _, seen in before.same], now)
    if before.has_filled() or others is None or not environment.seen.keys().isdisjoint(map(id, others.values())):
        return None
    equal = [(read, others.get(id(value), value), seen) for read, value, seen in before.equal]
    read_now = [read(value) for read, value, _ in equal]
    for (read, value, seen), (_, then, _), found in zip(equal, before.equal, read_now, strict=True):
        if value is then:
            same = bool(found == seen)
        else:  # one with attributes of its own may be read for these
            same = read is trail.tensor and kind(found) == kind(seen) and not (found[-1] or seen[-1])
        if not same:
            return None
    if shared([seen for read, _, seen in equal if read is trail.tensor]) != shared(
        [found for (read, _, _), found in zip(equal, read_now, strict=True) if read is trail.tensor]
    ):
        return None
    numbers = {id(others[one]) if one in others else one: number for one, number in environment.seen.items()}
    found = replace(
        environment,
        trail=Trail(
            None,
            before.empty,
            [(read, value, seen) for (read, value, _), seen in zip(before.same, now, strict=True)],
            [(read, value, seen) for (read, value, _), seen in zip(equal, read_now, strict=True)],
        ),
        tensors=[others.get(id(tensor), tensor) for tensor in environment.tensors],
        seen=numbers,
    )
    found.__dict__["key"] = environment.key  # with its hash
    return found


def exchanged(before: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]]) -> dict[int, Any] | None:
    """The tensors, and tuples of such, that stand in the places of others, by the addresses of these; None where more
    has changed."""
    others: dict[int, Any] = {}
    for seen, found in zip(before, now, strict=True):
        if len(seen) != len(found):
            return None
        for then, one in zip(seen, found, strict=True):
            if one is not then and not exchange(then, one, others):
                return None
    held = set(map(id, chain.from_iterable(now)))
    held.update(id(each) for value in chain.from_iterable(now) if isinstance(value, tuple) for each in items_in(value))
    is_one_for_one = len(set(map(id, others.values()))) == len(others) and held.isdisjoint(others)
    return others if is_one_for_one else None


def exchange(then: Any, now: Any, others: dict[int, Any]) -> bool:
    """Whether one may stand in the place of the other, which is written down."""
    if type(then) is not type(now) or others.setdefault(id(then), now) is not now:
        return False
    if isinstance(then, tuple) and len(then) == len(now):
        return all(one is other or exchange(one, other, others) for one, other in zip(then, now, strict=True))
    return type(then) is Tensor


def items_in(values: tuple[Any, ...]) -> Iterator[Any]:
    """What is in a tuple, and in the tuples in it."""
    for value in values:
        yield value
        if isinstance(value, tuple):
            yield from items_in(value)


def kind(described: Sequence[Any]) -> tuple[Any, ...]:
    """What a key has of a tensor. described: as `trail.tensor` does."""
    shape, dtype, device, requires_grad, *_ = described
    return shape, dtype, device, requires_grad


def shared(described: Sequence[Sequence[Any]]) -> list[int]:
    """The first tensor that lies in the same place as each."""
    first: dict[Any, int] = {}
    return [first.setdefault((place, shape, grad), at) for at, (shape, _, _, grad, place, _) in enumerate(described)]
