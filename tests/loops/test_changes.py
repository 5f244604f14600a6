"""What changes between calls: a plan runs only where all that the loop reads is as it was."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import bppsa
from tests.loops.beside import Pair, assert_alike, run
from tests.loops.cells import B, Cell, H, N, T, x
from tests.loops.models import Stack
from tests.loops.more_models import Embeds

scale = 0.5
TABLE = {"scale": [1.0, 0.5]}
factor = torch.tensor(0.7, dtype=torch.float64)


class Reads(Cell):
    """A loop that reads attributes, globals and what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.flags = 1.0, {"negate": False}
        self.shift: Tensor | None = None
        self.fixed = torch.zeros(H, dtype=torch.float64)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor, h: Tensor | None = None, *, twice: bool = False) -> Any:
        h = self.start(x) if h is None else h
        out = []
        for t in range(x.shape[1]):
            h = self.dropout(self.cell(x[:, t], h)) * self.gain * scale * TABLE["scale"][0] * factor + self.fixed
            if self.flags["negate"]:
                h = -h
            if twice:
                h = self.cell(x[:, t], h)
            if self.shift is not None:
                h = h + self.shift
            out.append(h)
        return torch.stack(out, 1), h


def freeze(model: Any) -> None:
    model.cell.weight_hh.requires_grad_(False)


def double(module: Any, args: Any, output: Tensor) -> Tensor:
    return output * 1.5


def tie(model: Any) -> None:
    model.cell.bias_ih = model.cell.bias_hh


def replace(model: Any) -> None:
    torch.manual_seed(3)
    model.cell.weight_hh = nn.Parameter(torch.randn(3 * H, H, dtype=torch.float64))


def fill(model: Any) -> None:
    with torch.no_grad():
        model.cell.weight_hh.mul_(0.5)
        model.fixed += 1


def normalize(model: Any) -> None:
    parametrizations.weight_norm(model.cell, "weight_hh")


def other(model: Any) -> None:
    torch.manual_seed(3)
    model.cell = nn.GRUCell(N, H).double()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda model: None,
    "a number": lambda model: setattr(model, "gain", 0.3),
    "a flag deep inside": lambda model: model.flags.update(negate=True),
    "a new tensor": lambda model: setattr(model, "shift", torch.ones(H, dtype=torch.float64)),
    "a tensor replaced": lambda model: setattr(model, "fixed", torch.ones(H, dtype=torch.float64)),
    "weights and a tensor in place": fill,
    "a weight replaced": replace,
    "another cell": other,
    "weights tied": tie,
    "a weight frozen": freeze,
    "all frozen": lambda model: model.requires_grad_(False),
    "a hook": lambda model: model.cell.register_forward_hook(double),
    "a hook before": lambda model: model.cell.register_forward_pre_hook(lambda m, args: (args[0] * 2, args[1])),
    "a hook of its own": lambda model: model.register_forward_hook(lambda m, args, out: (out[0] * 2, out[1])),
    "a backward hook": lambda model: model.cell.register_full_backward_hook(lambda m, gi, go: (gi[0], gi[1] * 2)),
    "a hook on a weight": lambda model: model.cell.weight_hh.register_hook(lambda g: g * 2),
    "evaluation": lambda model: model.eval(),
    "a parametrization": normalize,
    "a state loaded": lambda model: model.load_state_dict({k: v * 0.5 for k, v in model.state_dict().items()}),
    "another forward of the cell": lambda model: setattr(model.cell, "forward", lambda x, h: torch.tanh(h + x.sum())),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_seen(name: str) -> None:
    pair = Pair(Reads())
    for seed in range(4):
        pair.call(x(), seed=seed)
    assert [d.strategy for d in pair.decisions()] == ["sequential"]
    pair.both(CHANGES[name])
    for seed in range(3):
        pair.call(x(), seed=seed)


def test_globals_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(Reads())
    for name, value in (("scale", 0.5), ("scale", 0.9), ("TABLE", {"scale": [3.0]}), ("factor", factor * 2)):
        monkeypatch.setitem(globals(), name, value)
        for seed in range(2):
            pair.call(x(), seed=seed)
    monkeypatch.setitem(TABLE, "scale", [0.1])
    pair.call(x())


def test_calls_of_all_kinds() -> None:
    """Each is checked when it comes first, and run by its plan afterwards."""
    pair = Pair(Reads())
    h = torch.randn(B, H, dtype=torch.float64)
    strided = torch.randn(T, B, N, dtype=torch.float64).transpose(0, 1)
    one = torch.randn(B, 1, N, dtype=torch.float64).expand(B, T, N)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x(),), {}),
        ((x(T + 3),), {}),
        ((x(2),), {}),
        ((x(1),), {}),
        ((x()[:1],), {}),
        ((x().detach(),), {}),
        ((x(), h), {}),
        ((x(), h.clone().requires_grad_()), {}),
        ((x(),), {"twice": True}),
        ((x(),), {"h": h}),
        ((strided,), {}),
        ((one,), {}),
    ]
    for seed in range(3):
        for args, kwargs in calls:
            pair.call(*args, seed=seed, **kwargs)
    with torch.no_grad():
        for seed in range(3):
            pair.call(x(), seed=seed)
    with torch.inference_mode():
        for seed in range(3):
            pair.call(x(), seed=seed)


def test_one_tensor_given_twice() -> None:
    class Sums(Cell):
        def forward(self, x: Tensor, y: Tensor) -> Any:
            h = self.start(x)
            for t in range(x.shape[1]):
                h = self.cell(x[:, t] + 0.3 * y[:, t], h)
            return h

    pair = Pair(Sums())
    for _ in range(3):
        given = x()
        results = [model(given, given) for model in (pair.plain, pair.fast)]
        assert_alike(*results)
        assert_alike(*(torch.autograd.grad(result.sum(), given)[0] for result in results))
        pair.call(x(), x())


def test_a_weight_given_as_an_argument() -> None:
    class Starts(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(torch.randn(B, H))

        def forward(self, x: Tensor, h: Tensor) -> Any:
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h) + 0.1 * self.first
            return h

    pair = Pair(Starts())
    given = x()
    for _ in range(3):
        results = [model(given, model.first) for model in (pair.plain, pair.fast)]  # type: ignore[arg-type]
        assert_alike(*results)
        pair.call(given, torch.randn(B, H, dtype=torch.float64))


@pytest.mark.parametrize("change", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies(change: Callable[[nn.Module], nn.Module]) -> None:
    pair = Pair(Stack())
    for seed in range(3):
        pair.call(x(), seed=seed)
    pair.fast = change(pair.fast)
    for seed in range(3):
        pair.call(x(), seed=seed)
    assert [d.strategy for d in pair.decisions()] == ["sequential"]


def test_compiled_again() -> None:
    pair = Pair(Stack())
    pair.call(x())
    pair.fast = bppsa.compile(pair.fast)
    for seed in range(3):
        pair.call(x(), seed=seed)
    assert [d.strategy for d in pair.decisions()] == ["sequential"]


def test_within_another_model() -> None:
    pair = Pair(nn.Sequential(nn.Linear(N, N), Embedded(), nn.Tanh()))
    assert pair.strategies(x()) == ["sequential"]


class Embedded(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return torch.stack(out, 1)


def test_loops_are_left_alone_where_asked() -> None:
    pair = Pair(Stack(), loops=False)
    assert pair.strategies(x()) == []


class Counting(Stack):
    """With Python around its loop, which is a call of its own then."""

    def forward(self, x: Tensor) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return self.head(torch.stack(out, 1)), h


@pytest.mark.parametrize("kind", [Stack, Counting])
def test_modes_around_the_call(kind: type[Cell]) -> None:
    pair = Pair(kind())
    given = x()
    for _ in range(3):
        pair.call(given)

    def both(call: Callable[[nn.Module], Any]) -> None:
        assert_alike_all(*(call(model) for model in (pair.plain, pair.fast)))

    weights = {name: p.detach() * 0.5 for name, p in pair.plain.named_parameters()}
    both(lambda model: torch.func.functional_call(model, weights, (given,)))
    both(lambda model: torch.func.vmap(lambda one: model(one)[0])(torch.stack([given, given * 2])))
    both(lambda model: torch.func.grad(lambda one: model(one)[0].sum())(given))
    both(lambda model: torch.func.jvp(lambda one: model(one)[0], (given,), (given,)))
    both(lambda model: checkpoint(model, given, use_reentrant=False))
    both(lambda model: checkpoint(model, given, use_reentrant=True))
    with torch.autocast("cpu", torch.bfloat16):
        both(lambda model: model(given))
    with torch.autograd.graph.save_on_cpu():
        both(lambda model: model(given))
    pair.call(given)
    assert [d.strategy for d in pair.decisions()] == ["sequential"]


def assert_alike_all(expected: Any, found: Any) -> None:
    for one, other in zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True):
        assert_alike(one, other)


def test_second_derivatives() -> None:
    pair = Pair(Last2())
    given = x()
    for _ in range(3):
        firsts = [torch.autograd.grad(m(given).sum(), given, create_graph=True)[0] for m in (pair.plain, pair.fast)]
        assert_alike_all(*firsts)
        assert_alike_all(*(torch.autograd.grad(first.square().sum(), given)[0] for first in firsts))


class Last2(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


class Fails(Cell):
    fail = False

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            if self.fail and t == 3:
                raise KeyError("in the middle")
            h = self.cell(x[:, t], h)
            out.append(h)
        return torch.stack(out, 1)


@pytest.mark.parametrize("calls", [0, 3])
def test_exception_in_the_middle(calls: int) -> None:
    pair = Pair(Fails())
    for _ in range(calls):
        pair.call(x())
    pair.both(lambda model: setattr(model, "fail", True))
    for _ in range(2):
        for model in (pair.plain, pair.fast):
            with pytest.raises(KeyError, match="in the middle"):
                model(x())
    pair.both(lambda model: setattr(model, "fail", False))
    for _ in range(3):
        pair.call(x())
    assert [d.strategy for d in pair.decisions()] == ["sequential"]


def test_two_threads() -> None:
    pair = Pair(Stack())
    given = [x(T + i % 3) for i in range(4)]
    expected = [run(pair.plain, (one,), {}, 0)[0] for one in given]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(5):
            with torch.no_grad():
                if not torch.allclose(pair.fast(given[i])[0], expected[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_draws_go_on_from_call_to_call() -> None:
    class Draws(Cell):
        def forward(self, x: Tensor) -> Any:
            h = self.start(x)
            for t in range(x.shape[1]):
                h = F.dropout(self.cell(x[:, t], h), 0.5)
            return h

    pair = Pair(Draws())
    given, ran = x(), []
    for model in (pair.plain, pair.fast):
        torch.manual_seed(0)
        ran.append([model(given) for _ in range(4)])
    assert_alike_all(*ran)


def test_tokens_of_another_size() -> None:
    pair = Pair(Embeds())
    for steps in (T, T, 9, 9, T):
        pair.call(torch.randint(7, (B, steps)))


def test_dtype_of_the_model() -> None:
    pair = Pair(Stack())
    pair.call(x())
    pair.both(lambda model: model.float())
    for _ in range(2):
        given = x().float().detach()
        for expected, found in zip(pair.plain(given), pair.fast(given), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_what_others_see_of_the_model() -> None:
    model = Stack().double()
    fast = bppsa.compile(model)
    assert inspect.signature(fast.forward) == inspect.signature(model.forward)
    assert repr(fast) == repr(model)
    assert list(fast.state_dict()) == list(model.state_dict())
    scripted = torch.jit.script(bppsa.compile(Scripted().double()))
    given = x().detach()
    assert scripted(given).shape == (B, H)
    assert torch.jit.trace(fast, given)(given)[0].shape == (B, T, 2)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 4, dtype=x.dtype)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return h
