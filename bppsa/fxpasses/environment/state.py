"""What a call has put in the place of what it could read: attributes, items of lists and dicts that outlive it."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from bppsa.fxpasses.environment.trail import (
    OfCounters,
    OfModule,
    OfObject,
    Read,
    Trail,
    attributes,
    elements,
    items,
    size,
)


@dataclass(frozen=True)
class StatePlace:
    """at: which of a trail's readings finds what holds the place; it is the same for all calls of one key. key: of
    the attribute or item there."""

    at: int
    key: Any


def changed_state(trail: Trail, root: Any) -> dict[StatePlace, tuple[Any, Any]]:
    """What stood in the place before the call, and what stands there now: tensors, and containers of such. What else
    has changed is left out."""
    found: dict[StatePlace, tuple[Any, Any]] = {}
    for at, (read, value, seen) in enumerate(trail.same):
        held = root if value is None else value
        place, now = container(read, held), read(held)
        if place is not None and len(now) == len(seen):
            keys = place[1]
            ends = zip(keys, now[len(now) - len(keys) :], seen[len(now) - len(keys) :], strict=True)
            found |= {StatePlace(at, key): (then, one) for key, one, then in ends if one is not then and is_state(one)}
    return found


def put_back(trail: Trail, root: Any) -> bool:
    """Whether a call has left a tensor where the next one may find it, as in an attribute or a list. What stood there
    before is put there again, and a list is as long as it was, a dict as empty."""
    changed = changed_state(trail, root)
    put(trail, root, changed, [then for then, _ in changed.values()])
    found = bool(changed)
    for read, value, seen in trail.same:
        held = root if value is None else value
        known = set(map(id, seen))
        found |= any(isinstance(one, Tensor) and id(one) not in known for one in read(held))
        if read is elements and isinstance(held, list):
            del held[len(seen) :]
    for filled in trail.empty:
        if any(isinstance(one, Tensor) for one in pytree.tree_leaves(filled)):
            filled.clear()
            found = True
    return found


def put(trail: Trail, root: Any, places: Iterable[StatePlace], values: Iterable[Any]) -> None:
    """Puts the values where a call has put its own that has the trail's key."""
    for place, value in zip(places, values, strict=True):
        container_of(trail, root, place)[place.key] = value


def counters(trail: Trail, root: Any) -> dict[StatePlace, int]:
    """Numbers that a call adds to, and reads for nothing else."""
    found: dict[StatePlace, int] = {}
    for at, (read, value, _) in enumerate(trail.same):
        if isinstance(read, OfCounters):
            numbers = vars(root if value is None else value)
            found |= {StatePlace(at, name): numbers[name] for name in read.names if type(numbers.get(name)) is int}
    return found


def count(trail: Trail, root: Any, added: Iterable[tuple[StatePlace, int]]) -> None:
    """Adds what a call has added that has the trail's key."""
    for place, number in added:
        container_of(trail, root, place)[place.key] += number


def now_at(trail: Trail, root: Any, places: Sequence[StatePlace]) -> list[Any]:
    """What stands there."""
    return [container_of(trail, root, place)[place.key] for place in places]


def container_of(trail: Trail, root: Any, place: StatePlace) -> Any:
    read, held, _ = trail.same[place.at]
    found = container(read, root if held is None else held)
    assert found is not None
    return found[0]


def container(read: Read, value: Any) -> tuple[Any, Sequence[Any]] | None:
    """What holds the last of the things that `read` finds, and their keys; None where nothing can be put there."""
    if isinstance(read, OfModule):
        return vars(value), read.names(attributes(value))
    if isinstance(read, OfCounters):
        return vars(value), ()
    if isinstance(read, OfObject):
        return (vars(value), list(vars(value))) if hasattr(value, "__dict__") else None
    if read is items and isinstance(value, dict):
        return value, elements(value)
    return (value, range(size(value))) if read is elements and isinstance(value, (list, deque)) else None


def is_state(value: Any) -> bool:
    return all(leaf is None or isinstance(leaf, (Tensor, bool)) for leaf in pytree.tree_leaves(value))


def have_other_names(values: Sequence[Any], known: Container[int], arguments: Any) -> bool:
    """Whether a container in the values has another name: a change of the one is then a change of the other. known:
    addresses of what the call can read; arguments: what it is given."""
    found = [id(each) for value in values for each in changeable(value)]
    given = {id(each) for each in changeable(arguments)}
    return len(set(found)) < len(found) or any(each in known or each in given for each in found)


def changeable(value: Any) -> Iterator[Any]:
    """The lists, dicts and deques in a value."""
    if isinstance(value, (list, dict, deque)):
        yield value
    if isinstance(value, (list, tuple, dict, deque)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from changeable(each)
