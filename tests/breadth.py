"""How much of what there is to try runs in every `make test`; all of it runs in `make test-all`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from itertools import product
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

ALL = os.environ.get("BPPSA_TESTS") == "all"


def chosen(combinations: Iterable[tuple[Any, ...]], some: Collection[tuple[Any, ...]]) -> list[ParameterSet]:
    """All of them as parameters of a test, those that are not among `some` marked as slow."""
    combinations = list(combinations)
    unknown = set(some) - set(combinations)
    assert not unknown, unknown
    return [pytest.param(*names, marks=() if names in some else pytest.mark.slow) for names in combinations]


def diagonal(cases: Iterable[Any], *ways: Iterable[Any], marks: Callable[[Any], Any] = lambda case: ()) -> list[Any]:
    """Every case in every way, or every combination of ways, as parameters of a test; each in but one of them where
    slow tests do not run, the next case in the next."""
    cases, combined = list(cases), list(product(*ways))
    return [
        pytest.param(case, *way, marks=[*marks(case), *([] if i % len(combined) == j else [pytest.mark.slow])])
        for (i, case), (j, way) in product(enumerate(cases), enumerate(combined))
    ]


def alternate(cases: Iterable[Any], one_of: int = 2) -> list[ParameterSet]:
    """All but one of two, or of so many, marked as slow."""
    return [pytest.param(case, marks=[pytest.mark.slow] if i % one_of else []) for i, case in enumerate(cases)]


def examples(count: int) -> settings:
    """So many examples of hypothesis, or a quarter of them."""
    return settings(max_examples=count if ALL else max(3, count // 4))
