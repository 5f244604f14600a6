"""Numbers of Python's that change from call to call: a call of a kind that differs from another in them alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

from torch.utils import _pytree as pytree

from bppsa.frontend.loops.key import LoopCall
from bppsa.fxpasses.environment.key import Key, exact
from bppsa.fxpasses.reroll.log.numbers import TELLS_KINDS, Arithmetic, FollowedNumber, plain

CallArguments = tuple[tuple[Any, ...], dict[str, Any]]
FLOAT = float, "any"  # in the place of a number in a key


@dataclass(frozen=True)
class ChangingNumbers:
    """The floats that a call is given. order: the place of each among the call's leaves, in the order in which
    `swapped` meets them; at: the places of those that change."""

    call: LoopCall
    order: tuple[int, ...]
    at: frozenset[int]

    @property
    def values(self) -> list[float]:
        return [self.call.leaves[i] for i in self.order if i in self.at]

    @property
    def key(self) -> Hashable:
        """The key of all calls that differ in these alone."""
        key: Any = self.call.key
        environment, spec, given, *rest = key
        return environment, spec, tuple(FLOAT if i in self.at else each for i, each in enumerate(given)), *rest

    def following(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], is_part: bool, within: Arithmetic
    ) -> CallArguments:
        """The arguments, with numbers that are followed in the place of those that change."""
        order = iter(self.order)
        return swapped(args, kwargs, is_part, lambda value: within.enter(value) if next(order) in self.at else value)


@dataclass
class Changes:
    """What is known of calls that differ in numbers alone. first: those of the first; at: where others have had another
    one; tried: whether such a call was followed."""

    first: list[Hashable]
    at: frozenset[int] = frozenset()
    tried: bool = False

    def narrowed(self, numbers: ChangingNumbers) -> ChangingNumbers | None:
        """The numbers that change, of those given; None where none has."""
        now = exactly(numbers)
        at = self.at | {i for i, one, then in zip(numbers.order, now, self.first, strict=True) if one != then}
        self.tried &= at == self.at
        self.at = at
        return replace(numbers, at=at) if at else None


def exactly(numbers: ChangingNumbers) -> list[Hashable]:
    return [exact(numbers.call.leaves[i]) for i in numbers.order]


def numbers_of(call: LoopCall, args: tuple[Any, ...], kwargs: dict[str, Any], is_part: bool) -> ChangingNumbers | None:
    """None where the call has no such numbers, its code may ask for the type of one, or it is a graph."""
    names = call.environment.lookups.names
    if float not in set(map(type, call.leaves)) or not names or not TELLS_KINDS.isdisjoint(names):
        return None
    met = Arithmetic()
    leaves = pytree.tree_leaves(swapped(args, kwargs, is_part, met.enter))
    places = {leaf.place: i for i, leaf in enumerate(leaves) if type(leaf) is FollowedNumber}
    order = tuple(places[k] for k in sorted(places))
    return ChangingNumbers(call, order, frozenset(order)) if order else None


def swapped(
    args: tuple[Any, ...], kwargs: dict[str, Any], is_part: bool, change: Callable[[float], Any]
) -> CallArguments:
    """The arguments, those that are floats changed; of a loop that is a function of its own, its variables."""

    def each(values: dict[str, Any]) -> dict[str, Any]:
        return {name: change(value) if type(value) is float else value for name, value in values.items()}

    if is_part:
        return tuple(map(each, args)), kwargs
    return tuple(change(value) if type(value) is float else value for value in args), each(kwargs)


def settled(result: Any, arithmetic: Arithmetic) -> Any:
    """What a call returns, without numbers that are followed."""
    followed = any(type(leaf) is FollowedNumber for leaf in pytree.tree_leaves(result))
    arithmetic.looked |= followed
    arithmetic.over = True
    return pytree.tree_map_only(FollowedNumber, plain, result) if followed else result


def without_numbers(key: Any) -> Hashable:
    """What is alike of two kinds of calls that differ in floats that their code reads."""
    environment, *rest = key
    parts = environment.parts if isinstance(environment, Key) else ()
    return tuple(FLOAT if is_float(part) else part for part in parts), *rest


def is_float(part: Any) -> bool:
    return type(part) is tuple and len(part) == 2 and part[0] is float
