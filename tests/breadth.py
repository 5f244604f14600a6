"""How much of what there is to try runs in every `make test`; all of it runs in `make test-all`."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

ALL = os.environ.get("BPPSA_TESTS") == "all"
TESTS = Path(__file__).parent
# Of a test with at least so many cases one of so many runs in every `make test`.
STRIDES = ((24, 8), (12, 6), (6, 4), (3, 3))
WHOLE = (TESTS, TESTS / "models")  # folders of tests of what users and readers see, and of the models that CI cuts


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


def long_tail(items: Iterable[pytest.Function]) -> list[pytest.Function]:
    """The cases that are left to `make test-all`: of a test with many, all but one of so many."""
    cases = defaultdict(list)
    for item in items:
        if item.path.parent not in WHOLE and item.get_closest_marker("slow") is None:
            cases[item.path, item.originalname].append(item)
    return [item for of_one in cases.values() for i, item in enumerate(of_one) if i % stride(len(of_one))]


def stride(cases: int) -> int:
    return next((one_of for least, one_of in STRIDES if cases >= least), 1)
