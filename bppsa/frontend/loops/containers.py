"""What a loop is given to change: it changes copies, and what has become of them is put where they were.

A loop appends to lists, and writes into tensors. As a function whose calls are looked at it returns what it computes
and changes nothing, so that a plan can stand for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bppsa.fxpasses.environment.key import SIMPLE, is_simple


class GivenNumber(int):
    """Stands for the container, or tensor, of this number among those that a loop was given."""


def is_data(value: Any) -> bool:
    """Whether it is a tensor, a number, or a container of such."""
    if is_sequence(value):
        return all(map(is_data, value))
    if type(value) is dict:
        return all(isinstance(key, SIMPLE) and is_data(each) for key, each in value.items())
    return isinstance(value, Tensor) or is_simple(value)


def is_sequence(value: Any) -> bool:
    """A list, a tuple, or a named tuple as Python makes it."""
    kind = type(value)
    return kind in (list, tuple) or (kind.__bases__ == (tuple,) and hasattr(kind, "_fields"))


def rebuilt(value: Any, items: Iterable[Any]) -> Any:
    """A sequence of the value's type."""
    return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)


def changeable(values: Mapping[str, Any], written: Collection[str]) -> list[Any]:
    """Containers, and tensors of variables that may be written into, each once, in order."""
    found: dict[int, Any] = {}

    def look(value: Any, tensors: bool) -> None:
        if id(value) in found:
            return
        if type(value) in (list, dict) or (tensors and isinstance(value, Tensor)):
            found[id(value)] = value
        if is_sequence(value) or type(value) is dict:
            for each in value.values() if isinstance(value, dict) else value:
                look(each, tensors)

    for name, value in values.items():
        look(value, name in written)
    return list(found.values())


@dataclass
class Copies:
    """originals: what is copied, and stays as it is."""

    originals: list[Any]
    made: dict[int, Any] = field(default_factory=dict)  # by the original's address
    numbers: dict[int, int] = field(default_factory=dict)  # by the copy's address

    def of(self, value: Any) -> Any:
        if id(value) in self.made:
            return self.made[id(value)]
        if is_sequence(value) and not isinstance(value, list):
            return rebuilt(value, map(self.of, value))
        number = next((i for i, original in enumerate(self.originals) if original is value), None)
        if number is None:
            return value
        copy: Any = value.clone() if isinstance(value, Tensor) else type(value)()
        self.made[id(value)], self.numbers[id(copy)] = copy, number
        if isinstance(value, list):
            copy.extend(map(self.of, value))
        elif isinstance(value, dict):
            copy.update({key: self.of(each) for key, each in value.items()})
        return copy

    def packed(self, value: Any) -> Any:
        """The value, with what stands for a copy in its place."""
        if id(value) in self.numbers:
            return GivenNumber(self.numbers[id(value)])
        return within(value, self.packed)

    def contents(self) -> list[Any]:
        """What the copy of each original holds now; None where that has not changed."""
        return [self.content(original) for original in self.originals]

    def content(self, original: Any) -> Any:
        copy = self.made.get(id(original))
        if isinstance(copy, Tensor):
            return copy if copy._version else None
        if copy is None or same(copy, original, self.of):
            return None
        return within(copy, self.packed)


def same(copy: Any, original: Any, of: Any) -> bool:
    pairs = zip(elements(copy), elements(original), strict=False)
    return len(copy) == len(original) and all(one is of(other) for one, other in pairs)


def elements(value: Any) -> list[Any]:
    return [*value, *value.values()] if isinstance(value, dict) else value


def within(value: Any, change: Any) -> Any:
    if is_sequence(value):
        return rebuilt(value, map(change, value))
    return {key: change(each) for key, each in value.items()} if type(value) is dict else value


def put_back(originals: list[Any], contents: list[Any]) -> None:
    """The originals become what their copies hold."""
    for original, content in zip(originals, contents, strict=True):
        if content is None:
            continue
        if isinstance(original, Tensor):
            original.copy_(content)
        elif isinstance(original, list):
            original[:] = [unpacked(originals, each) for each in content]
        else:
            original.clear()
            original.update({key: unpacked(originals, each) for key, each in content.items()})


def unpacked(originals: list[Any], value: Any) -> Any:
    return originals[value] if type(value) is GivenNumber else within(value, lambda each: unpacked(originals, each))


def are_apart(originals: list[Any], others: list[Tensor]) -> bool:
    """Whether no tensor that is copied shares memory with another that the loop is given."""
    if torch.is_inference_mode_enabled():
        return not any(isinstance(original, Tensor) for original in originals)
    known = {id(tensor): tensor.untyped_storage()._cdata for tensor in others}
    for original in originals:
        if isinstance(original, Tensor):
            here = original.untyped_storage()._cdata
            if any(place == here for at, place in known.items() if at != id(original)):
                return False
    return True
