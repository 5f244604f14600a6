"""What other backends, threads and eager code see of this one; its options."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_map

from bppsa.errors import StrategyError
from bppsa.frontend.dynamo import backend
from tests.backend.support import B, H, I, T, Within, compiled, leaves, random, recurrences, results, same


def seen_by(backend: str, model: nn.Module) -> Any:
    """Graphs and graph breaks of a backend that is not ours."""
    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounterWithBackend(backend)
    output = leaves(torch.compile(model, backend=counter)(torch.ones(2, B, I)))[0]
    output.sum().backward()
    return [str(graph.graph) for graph in counter.graphs], counter.op_count, dict(counters["graph_break"]), output


@pytest.mark.parametrize("allow_rnn", [False, True])
@pytest.mark.parametrize("make", [lambda: Within(nn.GRU(I, H)), lambda: nn.RNN(I, H)])
def test_other_backends_see_what_they_saw(
    make: Callable[[], nn.Module], allow_rnn: bool, monkeypatch: pytest.MonkeyPatch, graphs: list[fx.GraphModule]
) -> None:
    model = make()
    with torch._dynamo.config.patch(allow_rnn=allow_rnn):
        with monkeypatch.context() as bare:  # Dynamo as it is without this backend
            bare.setattr(backend.VariableBuilder, "wrap_module", backend.VariableBuilder.wrap_module.__wrapped__)
            module = backend.UnspecializedNNModuleVariable
            bare.setattr(module, "var_getattr", module.var_getattr.__wrapped__)
            handlers = backend.TorchInGraphFunctionVariable._get_handlers()
            for kind in backend.KINDS:
                bare.delitem(handlers, getattr(torch, kind))
            before = [seen_by(backend, model) for backend in ("eager", "inductor")]
        torch._dynamo.reset()  # it remembers frames that it gave up on
        compiled(model)(torch.ones(2, B, I))
        after = [seen_by(backend, model) for backend in ("eager", "inductor")]
    for (*left, output), (*right, later) in zip(before, after, strict=True):
        assert left == right
        assert torch.equal(output, later)
    assert len(recurrences(graphs)) == 1


def test_nothing_else_in_the_process_changes() -> None:
    model = nn.GRU(I, H)
    compiled(model)(torch.ones(T, B, I))
    assert not torch._dynamo.config.allow_rnn
    assert "gru" not in vars(torch._VF)
    torch.jit.script(model)
    assert "gru" in str(torch.export.export(model, (torch.ones(T, B, I),)).graph)


def test_a_thread_of_its_own(graphs: list[fx.GraphModule]) -> None:
    fast = compiled(Within(nn.GRU(I, H)))
    thread = threading.Thread(target=fast, args=(torch.ones(T, B, I),))
    thread.start()
    thread.join()
    assert len(recurrences(graphs)) == 1


# Options


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"strategies": "auto"}, ("strategies", "fallback")),
        ({"fallback": "magic"}, ("magic", "inductor", "eager")),
        ({"fallback": "tvm"}, ("tvm", "inductor", "eager")),
    ],
)
def test_unknown_options_list_the_known(options: dict[str, str], names: tuple[str, ...]) -> None:
    with pytest.raises(StrategyError) as caught:
        torch.compile(nn.GRU(I, H), backend="bppsa", options=options)(torch.ones(T, B, I))
    assert all(name in str(caught.value) for name in names)
    assert len(str(caught.value).splitlines()) == 1  # and no line of the user's, where nothing is wrong
    assert not any("symbolic_convert" in str(entry.path) for entry in caught.traceback)


def test_mode_is_no_option() -> None:
    with pytest.raises(StrategyError, match="mode"):
        torch.compile(nn.Linear(2, 2), backend="bppsa", mode="max-autotune")(torch.ones(2))


@pytest.mark.parametrize("part", ["", "enter", "inner"])
def test_hooks_that_come_and_go_are_seen(part: str) -> None:
    """By Dynamo's default those that come after the first call are left out."""
    model, x = Within(nn.GRU(I, H)).double(), random(T, B, I)
    fast, parameters = compiled(model, fullgraph=False), list(model.parameters())
    hooked = model.get_submodule(part)
    fast(x)
    for add in (
        lambda: hooked.register_forward_hook(lambda module, args, output: tree_map(lambda y: y * 2, output)),
        lambda: hooked.register_forward_pre_hook(lambda module, args: (args[0] * 2, *args[1:])),
    ):
        hook = add()
        same(results(fast, [x], parameters), results(model, [x], parameters))
        hook.remove()
        same(results(fast, [x], parameters), results(model, [x], parameters))
