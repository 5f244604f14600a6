"""A bug of ours is never an answer: where a model is tried, what our own code raises comes through as it is."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import bppsa
from bppsa import compile, partition
from bppsa.distributed.over_time import losses
from bppsa.errors import BppsaError, InputError
from bppsa.fxpasses.over_time import cut, trial, verdict
from bppsa.fxpasses.partition.capture import copied, lines
from bppsa.fxpasses.recording import recorder
from bppsa.fxpasses.theirs import OURS, is_ours, theirs
from bppsa.schedule import blelloch, gpipe

BROKEN = """
def broken(*args, **kwargs):
    calls.append(1)
    if len(calls) == after + 1:
        raise ValueError("a bug")
    return original(*args, **kwargs)
"""


def broken(original: Any, after: int = 0) -> Callable[..., Any]:
    """A function of our own, by the file it seems to stand in, that fails once, after so many calls."""
    space: dict[str, Any] = {"calls": [], "after": after, "original": original}
    exec(builtins.compile(BROKEN, f"{OURS}broken.py", "exec"), space)
    return space["broken"]


class Network(nn.Module):
    def __init__(self, *, traceable: bool = True) -> None:
        super().__init__()
        self.recurrent, self.head, self.traceable = nn.GRU(3, 4), nn.Linear(4, 2), traceable

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(self.recurrent(x)[0])
        return y if self.traceable or y.sum() > 0 else -y


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def scan() -> None:
    bppsa.scan(lambda h, x: (torch.tanh(h + x), h), torch.zeros(2, 3), torch.zeros(5, 2, 3))


def jacobian() -> None:
    bppsa.jacobian(two_layers(), torch.zeros(5, 3))


def cut_into_stages() -> None:
    partition(two_layers(), torch.zeros(4, 3), 2)


def cut_by_hand() -> None:
    model = two_layers()
    partition(model, torch.zeros(4, 3), list(model))


def call_pruned() -> None:
    model = prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5)
    compile(nn.Sequential(model, nn.GELU()))(torch.zeros(5, 4))


def step_of_stages() -> None:
    model = compile(two_layers(), schedule=gpipe(), stages=2, microbatches=2, loss_fn=nn.functional.mse_loss)
    model.step(torch.zeros(4, 3), torch.zeros(4, 2))


def step_over_time(*, traceable: bool = True) -> None:
    options = {"microbatches": 2, "loss_fn": nn.functional.mse_loss}
    model = compile(Network(traceable=traceable), schedule=blelloch(2), **options)
    model.step(torch.zeros(6, 4, 3), torch.zeros(6, 4, 2))


# what of ours is broken, after how many calls, and what a user does
BUGS: dict[str, tuple[Any, str, int, Callable[[], None]]] = {
    "recording a cell": (recorder, "reads_values", 0, scan),
    "recording a model": (recorder, "reads_values", 0, jacobian),
    "recording a pointwise function": (recorder, "reads_values", 0, call_pruned),
    "copying": (copied, "facts_of", 0, cut_into_stages),
    "exporting": (lines, "innermost", 1, cut_into_stages),
    "stages by hand, in training": (sys.modules["bppsa.fxpasses.partition.by_hand"], "run_all", 1, cut_by_hand),
    "a recurrent model's chunks": (trial, "LayerCall", 1, step_over_time),
    "a recurrent model's rows": (verdict, "halves", 1, step_over_time),
    "a loss's parts": (losses, "is_sum", 0, step_over_time),
    "looking for packed sequences": (cut, "kept", 0, lambda: step_over_time(traceable=False)),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_of_ours_comes_through(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, after, use = BUGS[name]
    monkeypatch.setattr(module, attribute, broken(getattr(module, attribute), after))
    with pytest.raises(ValueError, match=r"^a bug") as caught:
        use()
    assert not isinstance(caught.value, BppsaError)


def raised_by(function: Callable[..., Any], *args: Any) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (any)
        function(*args)
    return caught.value


def test_whose_error_it_is() -> None:
    bug = broken(None)
    assert is_ours(raised_by(bug))
    assert is_ours(raised_by(theirs, broken(None)))  # within what was called for them
    assert not is_ours(raised_by(theirs, torch.mm, torch.zeros(2, 3), torch.zeros(2, 3)))
    assert not is_ours(raised_by(theirs, int, "one"))
    assert not is_ours(raised_by(theirs, nn.Linear(3, 4), torch.zeros(2, 2)))
    assert not is_ours(raised_by(bppsa.scan, lambda h, x: (h, h), torch.zeros(2), torch.zeros(0, 2)))
    assert not is_ours(raised_by(bppsa.cells.MinGRU(3, 4), torch.zeros(2, 4), torch.zeros(2, 5)))


@pytest.mark.parametrize(
    "fails", [lambda x: len(3), lambda x: isinstance(x, 3), lambda x: x.missing, lambda x: float(x)]
)
def test_what_a_model_does_wrong_while_it_is_traced_is_its_own(fails: Any) -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            fails(x)
            return x

    with pytest.raises(BppsaError, match="cannot be traced"):
        partition(nn.Sequential(nn.Linear(3, 3), Failing()), torch.zeros(4, 3), 1)


def test_a_model_that_fails_says_where() -> None:
    with pytest.raises(InputError, match=r"1 \(Linear\): fails for x"):
        bppsa.jacobian(nn.Sequential(nn.Linear(3, 4), nn.Linear(3, 2)), torch.zeros(5, 3))


WIDE = {
    "RuntimeError",
    "AttributeError",
    "Exception",
    "BaseException",
    "WHAT_FORWARDS_RAISE",
    "WHAT_LOSSES_RAISE",
    "OURS",
}
# file -> why an error caught there is never our own, or is never taken for an answer
ALONE = {
    "frontend/rnn/autocast.py": "around one call of PyTorch's",
    "distributed/script/checkpoints.py": "around calls of PyTorch's",
    "runtime/transport/carrier.py": "around calls of torch.distributed, whose errors are handed on",
    "runtime/worker/execute.py": "handed on, with the job that it came from",
}


def wide_handlers() -> Iterator[tuple[str, int]]:
    """Places that catch whatever PyTorch may raise, and neither ask whose it is nor raise it again."""
    for path in Path(OURS).rglob("*.py"):
        name = str(path.relative_to(OURS))
        if name in ALONE:
            continue
        for handler in ast.walk(ast.parse(path.read_text())):
            if not isinstance(handler, ast.ExceptHandler):
                continue
            caught = (
                {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else WIDE
            )
            if caught & WIDE and not any(asks(node) for node in ast.walk(handler)):
                yield name, handler.lineno


def asks(node: ast.AST) -> bool:
    """Whether it raises what was caught again, or does so where it is ours."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id == "raise_if_ours"
    return isinstance(node, ast.Raise) and node.exc is None


def test_whoever_catches_much_asks_whose_it_is() -> None:
    assert not list(wide_handlers())
