"""What TorchDynamo captures without a guard, and so would repeat in later calls, is Python's."""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.pruned.support import error, pruned


class Net(nn.Module):
    reason = ""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.table: Callable[[int], Tensor] = functools.cache(lambda n: torch.randn(n, dtype=torch.float64))
        self.recent: deque[Tensor] = deque(maxlen=2)
        self.factors = OrderedDict(a=2.0, b=3.0)

    def change(self) -> None:
        """Between two calls."""


class Caches(Net):
    reason = "a call of <lambda>, whose results functools keeps"

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.table(8)


class CachesByMethod(Net):
    reason = "a call of made, whose results functools keeps"

    @functools.lru_cache(maxsize=8)  # noqa: B019
    def made(self, n: int) -> Tensor:
        return torch.randn(n, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.made(8)


class CachesTorch(Net):
    reason = "a call of randn, whose results functools keeps"

    def __init__(self) -> None:
        super().__init__()
        self.table = functools.cache(torch.randn)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.table(8)


class CachesProperty(Net):
    reason = "its forward cannot be captured"

    @functools.cached_property
    def made(self) -> Tensor:
        return torch.randn(8, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.made


class Appends(Net):
    reason = "a collections.deque that outlives the call"

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.recent.append(y.detach())
        return y + torch.stack(list(self.recent)).sum(0) / len(self.recent)


class BecomesBounded(Appends):
    def __init__(self) -> None:
        super().__init__()
        self.recent = deque()

    def change(self) -> None:
        self.recent = deque(self.recent, maxlen=2)


class Iterates(Net):
    reason = "the order of a collections.OrderedDict that outlives the call"

    def change(self) -> None:
        self.factors.move_to_end(next(iter(self.factors)))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        for value in self.factors.values():
            y = (y + value) * value
        return y


class TakesFirst(Iterates):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.factors[next(iter(self.factors))]


class PutsBack(Iterates):
    def forward(self, x: Tensor) -> Tensor:
        _, value = self.factors.popitem()
        self.factors["c"] = value
        return self.layer(x) * value


class AsksForLeaves(Net):
    reason = "a question about a tensor's is_leaf"

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (2 if x.is_leaf else 3)


class AsksForGraphs(Net):
    reason = "a question about a tensor's grad_fn"

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (2 if x.contiguous().grad_fn is None else 3)


UNGUARDED = [
    *(Caches, CachesByMethod, CachesTorch, CachesProperty, Appends, BecomesBounded),
    *(Iterates, TakesFirst, PutsBack, AsksForLeaves, AsksForGraphs),
]


@pytest.mark.parametrize("made", UNGUARDED)
def test_what_is_not_guarded_is_each_calls_own(made: type[Net]) -> None:
    torch.manual_seed(0)
    plain = pruned(made().double(), 0.5)
    fast = bppsa.compile(plain)
    fast.table = functools.cache(plain.table.__wrapped__)  # type: ignore[attr-defined]
    fast.recent, fast.factors = deque(maxlen=plain.recent.maxlen), OrderedDict(plain.factors)
    for turn in range(5):
        x = torch.randn(4, 8).double().requires_grad_()
        x = x * 1 if turn % 2 else x
        results = []
        for model in (plain, fast):
            torch.manual_seed(turn)
            results.append(model(x))
            model.change()
        assert error(*results) < 1e-12
    assert made.reason in fast.report.decisions[0].reason


def test_what_pytorch_compiled_before_and_after_changes_nothing() -> None:
    """Dynamo keeps tables of its methods: ours must neither miss in them nor stay."""
    tables = torch._dynamo.variables.builder.VariableBuilder._type_dispatch_impl
    for first_is_ours in (False, True):
        tables.cache_clear()
        plain = Appends()
        torch.compiler.reset()
        by_pytorch = torch.compile(plain, backend="eager", fullgraph=True)
        if not first_is_ours:
            by_pytorch(torch.randn(4, 8))
        test_what_is_not_guarded_is_each_calls_own(Appends)
        by_pytorch(torch.randn(4, 8))


def test_an_ordered_dict_of_one_and_a_deque_of_a_call_are_captured() -> None:
    class Fits(Net):
        def __init__(self) -> None:
            super().__init__()
            self.factors = OrderedDict(a=2.0)

        def forward(self, x: Tensor) -> Tensor:
            recent = deque([x, x], maxlen=2)
            recent.append(self.layer(x))
            return torch.stack(list(recent)).sum(0) * next(iter(self.factors.values()))

    plain = pruned(Fits().double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    for _ in range(2):
        assert error(plain(x), fast(x)) < 1e-12
    assert [d.path for d in fast.report.decisions] == ["layer"]


def test_the_signature_is_the_users() -> None:
    class Scales(Net):
        def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
            return self.layer(x) * scale

    plain: Any = pruned(Scales().double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    assert inspect.signature(fast.forward) == inspect.signature(plain.forward)
    assert error(plain(x, scale=2.0), fast(x, scale=2.0)) < 1e-12
    assert inspect.signature(fast.layer.forward) == inspect.signature(nn.Linear(1, 1).forward)
