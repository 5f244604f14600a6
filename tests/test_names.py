"""The user's names are the user's: attributes, children and methods called as ours are, in models of every kind."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import bppsa
from bppsa.errors import ArgumentError

I, H = 5, 11  # noqa: E741  of tests/recurrent, which share the kernels


class Counted(nn.GRU):
    """A recurrent module with methods of names that ours once had."""

    def report(self) -> str:
        return "the user's"

    def _eager(self, *args: Any) -> str:
        return "the user's"

    _leave = _unusual = eager = _eager


class Named(nn.Module):
    """A chain, whose forward calls a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.report, self.other = nn.Linear(I, I), nn.Linear(I, I)

    def forward(self, x: Tensor) -> Tensor:
        return self._eager(torch.tanh(self.report(x)))

    def _eager(self, x: Tensor) -> Tensor:
        return self.other(x)


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(6, 3, I, dtype=torch.float64)


def close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_recurrent_module_keeps_its_methods(x: Tensor) -> None:
    model = Counted(I, H).double()
    fast = bppsa.compile(model, strategy="sequential")
    close(fast(x), model(x))
    assert fast.report() == fast._eager() == fast._leave() == fast._unusual() == fast.eager() == "the user's"
    (decision,) = bppsa.report(fast).decisions
    assert (decision.kind, decision.strategy) == ("gru", "sequential")
    with pytest.raises(bppsa.errors.InputError, match="features"):
        fast(x[..., :-1])


@pytest.mark.parametrize("strategy", ["auto", "blelloch"])
def test_a_chain_keeps_its_methods_and_children(x: Tensor, strategy: str) -> None:
    model = Named().double()
    fast = bppsa.compile(model, strategy=strategy)
    close(fast(x[0]), model(x[0]))
    assert isinstance(fast.report, nn.Linear)
    assert list(fast.state_dict()) == list(model.state_dict())
    assert {d.strategy for d in bppsa.report(fast).decisions} == ({"blelloch"} if strategy == "blelloch" else set())


class Holder(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


def as_attribute(model: nn.Module) -> None:
    model.report = "the user's"


def as_buffer(model: nn.Module) -> None:
    model.register_buffer("report", torch.ones(1))


def as_parameter(model: nn.Module) -> None:
    model.report = nn.Parameter(torch.ones(1))


def as_child(model: nn.Module) -> None:
    model.report = nn.Tanh()


def as_property(model: nn.Module) -> None:
    def report(self: Any) -> Any:
        raise RuntimeError("nobody may ask")

    model.__class__ = type("Own", (type(model),), {"report": property(report)})


def by_getattr(model: nn.Module) -> None:
    def found(self: Any, name: str) -> Any:
        return "the user's" if name == "report" else nn.Module.__getattr__(self, name)

    model.__class__ = type("Own", (type(model),), {"__getattr__": found})


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    x = torch.randn(6, 3, I, dtype=torch.float64)
    pruned = nn.Sequential(nn.Linear(I, 8), nn.ReLU(), nn.Linear(8, 8)).double()
    prune.l1_unstructured(pruned[2], "weight", 0.9)
    return {
        "recurrent": (Holder(nn.GRU(I, H)).double(), x),
        "a chain": (Holder(nn.Linear(I, I), nn.Tanh(), nn.Linear(I, I)).double(), x[0]),
        "pruned": (Holder(*pruned), x[0]),
    }


GIVERS = [as_attribute, as_buffer, as_parameter, as_child, as_property, by_getattr]


@pytest.mark.parametrize("name", networks())
@pytest.mark.parametrize("give", GIVERS)
def test_a_report_is_found_where_the_name_is_taken(name: str, give: Callable[[nn.Module], None]) -> None:
    model, x = networks()[name]
    give(model)
    fast = bppsa.compile(model)
    assert "no call has run yet" in str(bppsa.report(fast))
    before = vars(fast).get("report")
    close(fast(x), model(x))
    assert "no call has run yet" not in str(bppsa.report(fast))
    assert vars(fast).get("report") is before
    if give is not as_property:
        assert not isinstance(fast.report, bppsa.Report)


def test_a_report_is_an_attribute_where_the_name_is_free(x: Tensor) -> None:
    for model in (nn.GRU(I, H).double(), nn.Sequential(nn.GRU(I, H)).double(), nn.Linear(I, I).double()):
        fast = bppsa.compile(model)
        assert isinstance(fast.report, bppsa.Report)
        fast(x)
        assert fast.report is bppsa.report(fast)
        fast.report = "now the user's"
        fast(x)
        assert fast.report == "now the user's"
        assert "no call has run yet" not in str(bppsa.report(fast))


def test_only_a_compiled_model_has_a_report() -> None:
    for other in (nn.Linear(2, 2), "a model", bppsa.compile(nn.Sequential(nn.GRU(2, 2)))[0]):
        with pytest.raises(ArgumentError, match=r"takes a model that bppsa\.compile returned, or a function .* not a"):
            bppsa.report(other)  # type: ignore[arg-type]


def test_all_that_is_ours_is_one_record(x: Tensor) -> None:
    for model in (nn.GRU(I, H), nn.Sequential(nn.GRU(I, H)), nn.Sequential(nn.Linear(I, I), nn.Tanh())):
        for strategy in ("auto", "blelloch"):
            fast = bppsa.compile(model.double(), strategy=strategy)
            fast(x)
            for ours, theirs in zip(fast.modules(), model.modules(), strict=True):
                assert vars(ours).keys() - vars(theirs).keys() <= {"_bppsa", "report"}


def test_copies_report_for_themselves(x: Tensor) -> None:
    for model in (nn.GRU(I, H).double(), nn.Sequential(nn.GRU(I, H)).double(), Named().double()):
        given = x if not isinstance(model, Named) else x[0]
        fast = bppsa.compile(model, strategy="sequential" if given is x else "blelloch")
        fast(given)
        said = str(bppsa.report(fast))
        for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast)), bppsa.compile(fast)):
            other(given[:2])
            assert str(bppsa.report(fast)) == said
            assert str(bppsa.report(other)) != said
            if not isinstance(model, Named):
                assert (fast.report, other.report) == (bppsa.report(fast), bppsa.report(other))


def test_a_model_compiled_within_another_reports_for_both(x: Tensor) -> None:
    inner = bppsa.compile(nn.GRU(I, H).double(), strategy="sequential")
    outer = bppsa.compile(nn.Sequential(inner), strategy="sequential")
    inner(x)
    outer(x[:2])
    assert [d.numbers["T"] for model in (inner, outer, outer[0]) for d in bppsa.report(model).decisions] == [6, 2, 2]


def test_a_scripted_module_has_nothing_of_ours() -> None:
    fast = bppsa.compile(nn.GRU(I, H))
    scripted = torch.jit.script(fast)
    assert not [name for name in dir(scripted) if "bppsa" in name or name == "report"]


@pytest.mark.parametrize("strategy", ["blelloch", "hybrid"])
def test_a_record_tells_models_of_the_same_weights_apart(x: Tensor, strategy: str) -> None:
    model = Named().double()
    models = [bppsa.compile(model, strategy=strategy) for _ in range(2)] + [bppsa.compile(model, strategy="chunked")]
    for fast in models * 2:
        close(fast(x[0]), model(x[0]))
    assert [bppsa.report(fast).decisions[0].strategy for fast in models] == [strategy, strategy, "chunked"]
