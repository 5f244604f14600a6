"""What TorchDynamo captures wrongly or not at all is Python's, for a reason that names the user's line; and a fault of
ours within a capture is nobody's reason."""

from __future__ import annotations

import gc
import random
import re
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bppsa
from bppsa.frontend.pruned import classes
from bppsa.frontend.pruned.capture import frames, refusals
from bppsa.frontend.pruned.masking import state
from bppsa.frontend.pruned.masking.state import SOON
from bppsa.frontend.pruned.regions import graph
from tests.pruned.support import error, kernels, pruned


class Forward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rng = nn.Linear(8, 8), random.Random(0)


class OwnGenerator(Forward):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.rng.random()


class Handles(Forward):
    def forward(self, x: Tensor) -> Tensor:
        try:
            x = x * self.scale
        except AttributeError:
            x = x * 2
        return self.layer(x)


class Many(Forward):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(refusals.MOST_NODES):
            x = x + 1
        return self.layer(x)


class Branches(Forward):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x if x.sum() > 0 else -x)


class Checkpoints(Forward):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layer, x, use_reentrant=False)


class Assigns(Forward):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.shift.data = torch.ones(8, dtype=x.dtype)
        return self.layer(x) + self.shift


REASONS = {
    OwnGenerator: "random.Random",
    Handles: "an exception within a forward",
    Many: "a graph of more than 2000 ops",
    Branches: "Data-dependent branching",
    Checkpoints: "a function that PyTorch runs as a whole",
    Assigns: "an assignment to a tensor's .data",
}


@pytest.mark.parametrize(("made", "reason"), REASONS.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_a_refused_forward_is_pythons_and_its_layers_are_ours(made: type[Forward], reason: str) -> None:
    torch.manual_seed(0)
    plain = pruned(made().double(), 0.5)
    fast = bppsa.compile(plain)
    fast.rng, x = random.Random(0), torch.randn(4, 8).double()
    for _ in range(3):
        assert error(plain(x), fast(x)) < 1e-12
    of_root, of_layer = fast.report.decisions
    assert (of_root.path, of_root.strategy, of_layer.path, of_layer.strategy) == ("", "pytorch", "layer", "sparse")
    assert reason in of_root.reason
    assert re.search(r"test_refusals\.py:\d+: ", of_root.reason)


def test_what_is_missing_is_seen_when_it_is_there() -> None:
    plain = pruned(Handles().double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    for scale in (None, 3.0, 4.0):
        for model in (plain, fast):
            if scale is not None:
                model.scale = scale
        assert error(plain(x), fast(x)) < 1e-12


@pytest.mark.parametrize("scale", [lambda m, s: setattr(type(m), "scale", s), lambda m, s: m.__dict__.update(scale=s)])
def test_attributes_that_dynamo_does_not_guard(scale: Callable[[nn.Module, float], None]) -> None:
    class Reads(Forward):
        scale = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.__dict__.get("scale", self.scale)

    plain = pruned(Reads().double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    for turn in range(5):
        for model in (plain, fast):
            scale(model, 1.0 + turn // 2)
        assert error(plain(x), fast(x)) < 1e-12
    assert kernels(fast) == ["sparse"]


class Counts(Forward):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.kind = 0, "a"

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.layer(x) * (2 if self.calls % 2 else 3)
        return y + len(self.kind)


def test_a_counter_needs_few_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    captures = []
    before = graph.DynamoGraph.__init__
    monkeypatch.setattr(graph.DynamoGraph, "__init__", lambda self, *of: captures.append(1) or before(self, *of))
    plain = pruned(Counts().double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    for _ in range(20):
        assert error(plain(x), fast(x)) < 1e-12
    assert kernels(fast) == ["sparse"]
    assert len(captures) <= 4


def test_a_count_that_a_forward_multiplies_by_is_each_calls_own() -> None:
    class Multiplies(Counts):
        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.layer(x) * self.calls

    plain = pruned(Multiplies().double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    for _ in range(6):
        assert error(plain(x), fast(x)) < 1e-12


def test_a_forward_of_ever_new_flags_is_left_when_its_graphs_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = pruned(Counts().double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    for i in range(frames.MOST_GRAPHS + 3):
        plain.kind = fast.kind = "a" * i
        assert error(plain(x), fast(x)) < 1e-12
    assert "more than 32 graphs" in fast.report.decisions[0].reason
    assert "sparse" in kernels(fast)  # the layer by itself


def test_a_module_whose_attributes_become_others_again_and_again_is_left_and_its_parts_are_not() -> None:
    plain = pruned(Counts().double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    for i in range(classes.MOST_CAPTURES + 2):
        setattr(fast, f"attribute{i}", i)
        assert error(plain(x), fast(x)) < 1e-12
    assert "attributes were added" in fast.report.decisions[0].reason
    assert "sparse" in kernels(fast)  # the layer by itself


def test_captures_that_take_too_long_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MOST_SECONDS", -1.0)
    plain = pruned(Branches().double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    assert error(plain(x), fast(x)) < 1e-12
    assert "to capture" in fast.report.decisions[0].reason


def test_a_fault_of_ours_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(found: object) -> None:
        raise KeyError("a fault of ours")

    monkeypatch.setattr(graph, "take_products_in", broken)
    with pytest.raises(Exception, match="a fault of ours"):
        bppsa.compile(pruned(nn.Sequential(nn.Linear(8, 8)), 0.5))(torch.randn(2, 8))


def test_a_fault_of_ours_within_dynamo_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MOST_NODES", None)
    with pytest.raises(Exception, match="'>=' not supported"):
        bppsa.compile(pruned(nn.Sequential(nn.Linear(8, 8)), 0.5))(torch.randn(2, 8))


@pytest.mark.parametrize("fault", [AssertionError, IndexError, KeyError])
def test_a_fault_of_dynamos_leaves_it_to_python(fault: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise fault("of Dynamo's")

    monkeypatch.setattr("torch._dynamo.output_graph.SubgraphTracer.create_node", broken)
    plain = pruned(nn.Sequential(nn.Linear(8, 8)).double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    assert error(plain(x), fast(x)) < 1e-12
    assert "of Dynamo's" in fast.report.decisions[0].reason


MOVED = [
    "output_graph.SubgraphTracer",
    "variables.misc.RandomVariable",
    "symbolic_convert.InstructionTranslatorBase.exception_handler",
]


@pytest.mark.parametrize("name", MOVED)
def test_another_torch_is_pytorchs_and_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(f"torch._dynamo.{name}")
    plain = pruned(nn.Sequential(nn.Linear(8, 8)).double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    assert error(plain(x), fast(x)) < 1e-12
    assert f"torch {torch.__version__} has no torch._dynamo.{name}" in fast.report.decisions[0].reason


def test_an_option_that_another_torch_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(frames.OPTIONS, "an_option_of_old", True)
    plain = pruned(nn.Sequential(nn.Linear(8, 8)).double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    assert error(plain(x), fast(x)) < 1e-12
    assert "has no torch._dynamo.config.an_option_of_old" in fast.report.decisions[0].reason


def test_what_others_do_with_warnings_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings are the whole process's, threads and all: a capture that put them back would undo what others did."""
    init = graph.DynamoGraph.__init__

    def meanwhile(self: graph.DynamoGraph, *of: object) -> None:
        warnings.filterwarnings("ignore", "of another thread")
        init(self, *of)

    monkeypatch.setattr(graph.DynamoGraph, "__init__", meanwhile)
    with warnings.catch_warnings():
        bppsa.compile(pruned(nn.Sequential(nn.Linear(8, 8)), 0.5))(torch.randn(2, 8))
        assert "of another thread" in str(warnings.filters)


def test_modes_are_left_where_an_op_raises() -> None:
    class Fails(Forward):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                y = torch.linalg.cholesky(x)
            return self.layer(x) + y

    plain = pruned(Fails(), 0.5)
    fast = bppsa.compile(plain)
    assert error(plain(torch.eye(8)), fast(torch.eye(8))) < 1e-5
    with pytest.raises(RuntimeError, match="positive-definite"):
        fast(-torch.eye(8))
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_a_forward_that_raises_is_captured_once_it_does_not() -> None:
    class Checks(Forward):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] == 3:
                raise ValueError("three rows")
            return self.layer(x)

    plain = pruned(Checks().double(), 0.5)
    fast = bppsa.compile(plain)
    for rows in (3, 4, 3, 5):
        x = torch.randn(rows, 8).double()
        if rows == 3:
            with pytest.raises(ValueError, match="three rows"):
                fast(x)
        else:
            assert error(plain(x), fast(x)) < 1e-12
            assert [(d.path, d.strategy) for d in fast.report.decisions] == [("layer", "sparse")]


def test_what_dynamo_keeps_of_a_module_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs by a code object, sizes by its name, for ever: ours are numbered, and forgotten with their module."""
    from torch._dynamo.pgo import get_code_state

    def names() -> set[str]:
        return {key.name for key in get_code_state() if key.name.startswith(frames.entry.__name__)}

    before = names()
    fast = bppsa.compile(pruned(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), 0.5))
    made: list[weakref.ref[graph.DynamoGraph]] = []
    init = graph.DynamoGraph.__init__
    monkeypatch.setattr(
        graph.DynamoGraph, "__init__", lambda self, *of: made.append(weakref.ref(self)) or init(self, *of)
    )
    fast(torch.randn(2, 8)), fast(torch.randn(3, 8))
    assert len(names() - before) == 1
    gone = weakref.ref(fast)
    del fast
    assert gone() is None
    gc.collect()
    assert names() <= before
    assert len(made) == 2
    assert not [ref for ref in made if ref() is not None]


class Guarded(Forward):
    """Cannot be captured in training, as long as a flag says so."""

    checks = True

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.checks and not torch.isfinite(x).all():
            raise ValueError("not finite")
        return self.layer(x)


def test_a_refused_forward_is_tried_again_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    before = frames.Conversion.graph_of
    monkeypatch.setattr(frames.Conversion, "graph_of", lambda *of: tried.append(of[2].f_code.co_name) or before(*of))
    monkeypatch.setattr(state, "SHARE", 1e9)
    plain = pruned(Guarded().double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    for _ in range(4 * SOON):
        fast(x)
    assert "Data-dependent" in fast.report.decisions[0].reason
    assert tried.count(tried[0]) == 3  # in the first call, after SOON, and after twice as many
    plain.checks = fast.checks = False
    for _ in range(4 * SOON):
        assert error(plain(x), fast(x)) < 1e-12
    assert [(d.path, d.strategy) for d in fast.report.decisions] == [("layer", "sparse")]


def test_a_forward_that_is_refused_in_training_is_captured_in_evaluation() -> None:
    plain = pruned(Guarded().double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    for training, decided in ((True, ["", "layer"]), (False, ["layer"]), (True, ["", "layer"]), (False, ["layer"])):
        for model in (plain, fast):
            model.train(training)
        assert error(plain(x), fast(x)) < 1e-12
        assert [d.path for d in fast.report.decisions] == decided
    assert kernels(fast) == ["sparse"]


def test_hooks_hide_no_other_reason() -> None:
    fast, x = bppsa.compile(pruned(Guarded().double(), 0.5)), torch.randn(4, 8).double()
    handle = fast.layer.register_full_backward_hook(lambda *_: None)
    fast(x)
    assert "backward hooks" in fast.report.decisions[0].reason
    handle.remove()
    fast(x)
    assert "Data-dependent" in fast.report.decisions[0].reason
