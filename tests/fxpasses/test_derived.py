"""Keys of what derives from containers and numbers: its attributes and methods count, and its code is not run."""

from __future__ import annotations

import dis
import functools
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import hypothesis
import pytest
from torch import Tensor

from bppsa.fxpasses.environment.names import global_names, names_in_module, names_of_objects
from bppsa.fxpasses.environment.trail import names_among
from tests.fxpasses.test_environment import closing_over, key

FACTOR = 1.0


class Derived:
    scale = 1

    def scaled(self, value: float) -> float:
        return value * self.scale * FACTOR


class Options(Derived, dict[str, Any]):
    pass


class Steps(Derived, list[Any]):
    pass


class Tags(Derived, set[Any]):
    pass


class Window(Derived, deque[Any]):
    pass


class Sizes(Derived, tuple[Any, ...]):
    pass


class Rate(Derived, float):
    pass


class Named(NamedTuple):
    rate: float

    def scaled(self, value: float) -> float:
        return value * self.rate * FACTOR


class Level(IntEnum):
    LOW = 1


class Watching(logging.StreamHandler[Any]):
    rate = 1.0


def test_members_of_an_enum_and_handlers_have_attributes() -> None:
    for value in (Level.LOW, Watching()):
        cell = closing_over(value)
        value.rate = 0.5  # type: ignore[attr-defined]
        before = key(cell)
        assert key(cell) == before
        value.rate = 0.25  # type: ignore[attr-defined]
        assert key(cell) != before


@pytest.mark.parametrize("kind", [Options, Steps, Tags, Window, Sizes, Rate, lambda: functools.partial(len)])
def test_attributes(kind: Callable[[], Any]) -> None:
    held = kind()
    cell = closing_over([held])
    before = key(cell)
    held.scale = 2
    assert key(cell) != before


@pytest.mark.parametrize(
    "held", [Named(1.0), Options(), Steps(), Sizes(), Rate()], ids=lambda held: type(held).__name__
)
def test_what_methods_read(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def cell(h: Tensor, x: Tensor) -> Any:
        return h * held.scaled(2.0), x

    before = key(cell)
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert key(cell) != before


class Lazy(OrderedDict[str, Any]):
    """What is asked for is imported then, as in the tables of a large package; some of it is not installed."""

    def __len__(self) -> int:
        raise ImportError("not installed")

    __iter__ = __getitem__ = keys = values = items = __len__  # type: ignore[assignment]


def test_the_code_of_a_table_is_not_run() -> None:
    cell = closing_over(Lazy())
    before = key(cell)
    OrderedDict.__setitem__(cell.__closure__[0].cell_contents, "a", 1)  # type: ignore[attr-defined]
    assert key(cell) != before


@runtime_checkable
class Synced(Protocol):
    is_synced: bool


def test_a_protocol_that_no_class_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`issubclass` raises a TypeError for one with data."""
    monkeypatch.setattr(Synced, "__module__", "hypothesis.protocols")
    assert key(lambda h, x: (h, isinstance(x, Synced), hypothesis.Phase)) is not None


def test_a_function_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, found = [], dis.get_instructions
    monkeypatch.setattr(dis, "get_instructions", lambda code: taken.append(code) or found(code))  # type: ignore[func-returns-value]
    names = ", ".join(f"name{i}" for i in range(200))
    code = compile(f"def cell(h, x): return h, ({names})", "cell.py", "exec").co_consts[0]
    assert len(names_in_module(code)) == len(global_names(code)) == 200
    assert not names_of_objects(code)
    assert taken == [code]


def test_a_namespace_is_read_and_not_each_name() -> None:
    """The code of a large package spells thousands of names, and a class has some dozens."""

    class Asked(set[str]):
        asked = 0

        def __contains__(self, name: object) -> bool:
            self.asked += 1
            return super().__contains__(name)

    wanted = Asked(f"name{i}" for i in range(1000))
    assert names_among(wanted)({"name1": 1, "other": 2}) == ["name1", 1]
    assert wanted.asked == 2
