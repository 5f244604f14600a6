"""Each test starts with a Dynamo that remembers nothing, and sees what the backend hands on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.utils import counters

from bppsa.frontend.dynamo import backend


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[fx.GraphModule]]:
    """The graphs that the backend handed to Inductor or eager PyTorch."""
    seen: list[fx.GraphModule] = []
    lookup = backend.lookup_backend

    def spy(name: str) -> Callable[..., Any]:
        def compiler(graph: fx.GraphModule, inputs: list[Any]) -> Any:
            seen.append(graph)
            return lookup(name)(graph, inputs)

        return compiler

    monkeypatch.setattr(backend, "lookup_backend", spy)
    torch._dynamo.reset()
    counters.clear()
    yield seen
    torch._dynamo.reset()
