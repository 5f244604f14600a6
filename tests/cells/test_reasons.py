"""What keeps a cell from being fused: all of it at once, each with the line and a mend."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import bppsa
from bppsa.frontend.call_log import collecting
from bppsa.frontend.cell import fused_cell, plans
from bppsa.frontend.planning import sweeps
from bppsa.runtime.recurrent.reference import loop
from tests.cells.support import B, Cell, H, T, h, random, x


def reason_of(cell: Cell) -> str:
    with collecting() as taken:
        bppsa.scan(cell, h(), x(H))
    assert taken[-1].strategy == "pytorch"
    return taken[-1].reason


def several(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    g = torch.igamma(torch.ones_like(h), h * h)
    g = g - h.mean(0)
    h = torch.tanh(torch.igammac(torch.ones_like(g), g) + x)
    return h, h


def looks(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(h + x)
    return (h, h) if h.sum() > 0 else (-h, h)


def test_all_reasons_are_told_with_their_lines() -> None:
    told = reason_of(several)
    first = inspect.getsourcelines(several)[1]
    for offset, line, what in (
        (1, "g = torch.igamma(torch.ones_like(h), h * h)", "aten.igamma.default: has no kernel"),
        (2, "g = g - h.mean(0)", "aten.sum.dim_IntList: works along the batch dimension"),
        (3, "h = torch.tanh(torch.igammac(torch.ones_like(g), g) + x)", "aten.igammac.default: has no kernel"),
    ):
        assert f"test_reasons.py:{first + offset}: {line}: " in told, told
        assert what.replace("special_", "") in told.replace("special_", ""), told
    assert "of x alone any op will do" in told


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (lambda h, x: torch.func.linearize(torch.tanh, h)[0] + x, "traced within, as by torch.func.linearize"),
        (lambda h, x: torch.nested.as_nested_tensor([h, x]).to_padded_tensor(0.0)[0], "a tensor of layout nested"),
        (lambda h, x: (h + x).to_sparse().to_dense(), "a tensor of layout torch.sparse_coo"),
        (lambda h, x: torch.tanh(h + x) / x.ne(0).byte().numpy().sum(), "hands a tensor's values to Python"),
    ],
    ids=["traced", "nested", "sparse", "numpy"],
)
def test_a_cell_that_runs_on_numbers_alone_is_a_loop(run: Callable[[Tensor, Tensor], Tensor], what: str) -> None:
    assert what in reason_of(lambda h, x: ((n := run(h, x)), n))


def test_a_long_row_is_not_sorted_in_a_kernel() -> None:
    with collecting() as taken:
        bppsa.scan(lambda h, x: (h.sort(1).values + x, h), random(B, 17), random(T, B, 17))
    assert "aten.sort.default: takes 17 columns one by one, more than 16" in taken[-1].reason


def test_a_value_that_is_looked_at_is_told_with_its_line() -> None:
    told = reason_of(looks)
    first = inspect.getsourcelines(looks)[1]
    assert f"test_reasons.py:{first + 2}: return (h, h) if h.sum() > 0 else (-h, h): " in told
    assert "use torch.where" in told


class FakeOnGpu:
    """Stands for an x on a GPU."""

    device = torch.device("cuda")


@pytest.mark.parametrize("strategy", ["auto", "sequential", "chunked"])
def test_special_functions_have_no_kernel_on_a_gpu(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop runs, and the report says so."""

    def special(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(torch.lgamma(1 + h * h) + x)
        return h, h

    given = h(), x(H)
    asked = plans.without_kernel
    monkeypatch.setattr(fused_cell, "compile_recurrence", sweeps.compile_recurrence)  # which knows GPUs
    monkeypatch.setattr(plans, "without_kernel", lambda plan, x: asked(plan, FakeOnGpu()))  # type: ignore[arg-type]
    with collecting() as taken, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the strategy is missed
        found = bppsa.scan(special, *given, strategy=strategy)
    assert taken[-1].strategy == "pytorch"
    assert "lgamma" in taken[-1].reason
    assert "GPU" in taken[-1].reason
    torch.testing.assert_close(found, loop(special, *given))
