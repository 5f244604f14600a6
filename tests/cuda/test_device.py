"""CUDA kernels on a GPU: beside the interpreter of the kernel language, and modules beside cuDNN."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bppsa
from bppsa.codegen.gpu.cuda.native import CudaKernel, cuda_kernel
from bppsa.codegen.language import interpret
from bppsa.frontend.planning import sweeps
from tests.codegen.kernels import operands
from tests.codegen.programs import kernels
from tests.cuda.test_print_cuda import EXTENTS, REAL, agree, copies
from tests.recurrent.support import same
from tests.triton.models import MODELS, built

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("width", [3, 20, 32, 64])
@pytest.mark.parametrize("model", MODELS)
def test_kernels_agree_with_the_interpreter(model: str, width: int, dtype: torch.dtype) -> None:
    for kernel in kernels(built(model, width)):
        on_gpu = cuda_kernel(kernel, REAL[dtype])
        if not (kernel.groups and isinstance(on_gpu, CudaKernel)):
            continue
        for steps, rows, active in EXTENTS:
            for reverse in (False, True):
                given = operands(kernel, steps, rows, dtype)
                expected, got = copies(given), [tensor.to("cuda") for tensor in given]
                flags = {"steps": steps, "rows": rows, "reverse": reverse}
                flags |= {} if active is None else {"active": torch.tensor(active)}
                interpret.run(kernel, expected, **flags)
                on_gpu(got, **flags)
                agree(kernel, [tensor.cpu() for tensor in got], expected)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_modules_agree_with_cudnn(kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sweeps.GPU_PRINTER, "cuda")
    sweeps.compile_recurrence.cache_clear()
    module = kind(7, 20, 2, bidirectional=True, device="cuda", dtype=torch.float64)
    x = torch.randn(50, 4, 7, device="cuda", dtype=torch.float64, requires_grad=True)
    fast = bppsa.compile(module, strategy="sequential")
    found, expected = (
        [y, *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])] for y in (fast(x)[0], module(x)[0])
    )
    sweeps.compile_recurrence.cache_clear()
    assert fast.report.decisions[0].strategy == "sequential"
    same(found, expected, 1e-9)
