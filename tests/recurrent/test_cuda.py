"""On a GPU: modules whose forward is cuDNN's, cells whose steps are affine, and what auto makes of both."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa import cells
from bppsa.runtime.recurrent.reference import loop
from tests.recurrent.support import same

pytestmark = pytest.mark.gpu
T, B, I, H = 300, 4, 7, 20  # noqa: E741
MODULES = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


def gradients(run: Callable[[Tensor], Tensor], x: Tensor, module: nn.Module) -> list[Tensor]:
    y = run(x)
    torch.manual_seed(1)
    return [y.detach(), *torch.autograd.grad(y, [x, *module.parameters()], torch.randn_like(y))]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", MODULES)
def test_gradients_are_cudnns_without_a_warning(kind: str, dtype: torch.dtype) -> None:
    for layers, bidirectional in itertools.product((1, 2), (False, True)):
        torch.manual_seed(0)
        module = MODULES[kind](I, H, layers, bidirectional=bidirectional, device="cuda", dtype=dtype)
        x = torch.randn(T, B, I, device="cuda", dtype=dtype, requires_grad=True)
        fast = bppsa.compile(module, strategy="chunked", forward="pytorch")
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False), warnings.catch_warnings():
            warnings.simplefilter("error")
            found = gradients(lambda x, fast=fast: fast(x)[0], x, module)
            expected = gradients(lambda x, module=module: module(x)[0], x, module)
        same(found, expected, TOLERANCE[dtype])
        assert fast.report.decisions[0].forward == "pytorch"


def test_auto_takes_cudnns_forward_for_long_sequences() -> None:
    module, rows = nn.GRU(H, H, device="cuda"), 16
    fast = bppsa.compile(module)
    for steps, taken in ((50, ("pytorch", "sequential")), (20_000, ("chunked", "pytorch"))):
        x = torch.randn(steps, rows, H, device="cuda", requires_grad=True)
        fast(x)[0].sum().backward()
        found = fast.report.decisions[0]
        assert (found.strategy, found.forward) == taken


def test_a_cell_of_affine_steps_is_solved_at_once() -> None:
    torch.manual_seed(0)
    cell = cells.MinGRU(I, H).to("cuda", torch.float64)
    x = torch.randn(T, B, I, device="cuda", dtype=torch.float64, requires_grad=True)
    found = gradients(lambda x: bppsa.scan(cell, cell.initial(B), x, strategy="chunked", forward="newton")[1], x, cell)
    same(found, gradients(lambda x: loop(cell, cell.initial(B), x)[1], x, cell), 1e-10)
