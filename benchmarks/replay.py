"""The innermost calls of a step, again and without what surrounds them: what is left is what the rest costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch

from timing import Step

Method = tuple[type, str]


def replay(step: Step, methods: Sequence[Method]) -> Step | None:
    """A step that only makes the calls of `methods` that `step` makes, with the same arguments; None if it makes none."""
    calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def recording(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append((method, args, kwargs))
            return method(*args, **kwargs)

        return call

    step()  # whatever is only done once
    with ExitStack() as stack:
        for owner, name in methods:
            stack.enter_context(mock.patch.object(owner, name, recording(getattr(owner, name))))
        step()
    if not calls:
        return None

    def again() -> tuple[float]:
        with torch.no_grad():
            start = time.perf_counter()
            for method, args, kwargs in calls:
                method(*args, **kwargs)
            return (time.perf_counter() - start,)

    return again
