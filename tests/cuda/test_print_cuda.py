"""The CUDA printer against the interpreter of the kernel language, on a CPU: threads in turns, from either end."""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bppsa.codegen.gpu.cuda.compile import cubin
from bppsa.codegen.gpu.cuda.lanes import Lanes, lanes_of
from bppsa.codegen.gpu.cuda.native import CudaKernel, arguments_of, cuda_kernel
from bppsa.codegen.gpu.cuda.print_cuda import CudaText, printed
from bppsa.codegen.language import interpret
from bppsa.codegen.language.ir import Kernel
from bppsa.errors import MachineError, Reason
from bppsa.frontend.planning import sweeps
from tests.codegen.kernels import (
    delayed,
    gated_backward,
    gated_forward,
    normalised,
    operands,
    swapped,
    two_stage,
)
from tests.codegen.programs import kernels
from tests.cuda.on_cpu import ShimKernel
from tests.triton.models import MODELS, WITH_HEADS, built

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}
REAL = {torch.float32: "float", torch.float64: "double"}
BY_HAND = (gated_forward, gated_backward, normalised, two_stage, swapped, delayed)
# Steps, rows, and how many of them take part in each step.
EXTENTS = [(1, 1, None), (9, 2, None), (0, 2, None), (2, 0, None), (6, 4, [4, 3, 3, 1, 1, 1])]
SWEEPS = ("forward", "inference", "backward")


def copies(tensors: list[Tensor]) -> list[Tensor]:
    """With the same strides."""
    made = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in tensors]
    return [copy.copy_(t) for copy, t in zip(made, tensors, strict=True)]


def check(kernel: Kernel, dtype: torch.dtype = torch.float64) -> None:
    on_cpu = ShimKernel(kernel, REAL[dtype])
    for steps, rows, active in EXTENTS:
        for reverse in (False, True):
            given = operands(kernel, steps, rows, dtype)
            flags = {"steps": steps, "rows": rows, "reverse": reverse}
            flags |= {} if active is None else {"active": torch.tensor(active)}
            expected = copies(given)
            interpret.run(kernel, expected, **flags)
            for backwards in (False, True):
                got = copies(given)
                on_cpu(got, backwards=backwards, **flags)
                agree(kernel, got, expected)
    assert on_cpu.faults == 0


def agree(kernel: Kernel, got: list[Tensor], expected: list[Tensor]) -> None:
    for b, ours, theirs in zip(kernel.arguments, got, expected, strict=True):
        tolerance = TOLERANCE[theirs.dtype]
        torch.testing.assert_close(
            ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m, b=b: f"{b}: {m}"
        )


def sweep_of(model: str, width: int, name: str) -> Kernel:
    return kernels(built(model, width))[SWEEPS.index(name)]


@pytest.mark.parametrize(("make", "H"), [(make, H) for make in BY_HAND for H in (2 if make is swapped else 1, 20, 33)])
def test_agrees_with_the_interpreter(make: Callable[[int], Kernel], H: int) -> None:
    check(make(H))


@pytest.mark.parametrize("H", [20, 70])
@pytest.mark.parametrize("make", BY_HAND)
def test_in_float32(make: Callable[[int], Kernel], H: int) -> None:
    check(make(H), torch.float32)


@pytest.mark.parametrize("width", [3, 20, 40, 64])
@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.parametrize("model", MODELS)
def test_models_agree_with_the_interpreter(model: str, name: str, width: int) -> None:
    kernel = sweep_of(model, width, name)
    if kernel.groups and not isinstance(lanes_of(kernel, "double"), Reason):
        check(kernel)


def test_columns_are_shared_among_threads_where_weights_are_many() -> None:
    """A thread of an LSTM of 64 holds half of its unit's weights."""
    assert lanes_of(sweep_of("LSTM", 20, "forward"), "float") == Lanes(32, 1)
    assert lanes_of(sweep_of("LSTM", 64, "forward"), "float") == Lanes(64, 2)


@pytest.mark.parametrize(
    "make",
    [
        normalised,
        functools.partial(sweep_of, "GRU", name="backward"),
        functools.partial(sweep_of, "RNN", name="forward"),
    ],
)
@pytest.mark.parametrize("width", [20, 64])
def test_a_meeting_that_is_left_out_is_noticed(make: Callable[[int], Kernel], width: int) -> None:
    """Each of them, whatever the order of threads makes of it."""
    kernel = make(width)
    text = printed(kernel, "float")
    assert isinstance(text, CudaText)
    step = range(text.source.index("const int odd"), text.source.index("break;"))
    meetings = [i for i in step if text.source.startswith("MEET;", i)]
    assert meetings
    for at in meetings:
        broken = replace(text, source=text.source[:at] + text.source[at + len("MEET;") :])
        on_cpu = ShimKernel(kernel, "float", broken)
        on_cpu(operands(kernel, 9, 2, torch.float32), steps=9, rows=2)
        assert on_cpu.faults != 0


@pytest.mark.parametrize("model", WITH_HEADS)
def test_what_it_does_not_print_has_a_reason(model: str) -> None:
    refused = printed(sweep_of(model, 4, "forward"), "float")
    assert isinstance(refused, Reason)
    assert "axes" in str(refused)


def test_weights_that_no_registers_hold_are_refused() -> None:
    assert "registers" in str(printed(sweep_of("LSTM", 256, "forward"), "float"))


def test_machine_code_without_a_gpu() -> None:
    if importlib.util.find_spec("cuda") is None:
        pytest.skip("needs cuda-bindings and NVRTC: make aot fetches them")
    text = printed(sweep_of("RNN", 20, "forward"), "float")
    assert isinstance(text, CudaText)
    assert cubin(text.source, (9, 0)).startswith(b"\x7fELF")


def test_an_unknown_printer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sweeps.GPU_PRINTER, "opencl")
    with pytest.raises(MachineError, match="known: triton, cuda"):
        sweeps.gpu_kernels("float", [])


def test_a_launch_has_a_block_a_row_and_an_argument_for_each_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    driver = types.SimpleNamespace(CUstream=int, cuLaunchKernel=lambda *given: (launched.append(given), (0,))[1])
    monkeypatch.setitem(sys.modules, "cuda", types.SimpleNamespace(bindings=None))
    monkeypatch.setitem(sys.modules, "cuda.bindings", types.SimpleNamespace(driver=driver))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: types.SimpleNamespace(cuda_stream=7))
    kernel = cuda_kernel(sweep_of("GRU", 20, "backward"), "float")
    assert isinstance(kernel, CudaKernel)
    kernel.loaded[0] = "the function"
    given, _, _ = arguments_of(kernel.kernel, operands(kernel.kernel, 5, 3, torch.float32), 5, 3, None, True)
    kernel.launch(given, 3, torch.device("cuda", 0))
    function, *grid, shared, stream, (values, kinds), _ = launched[0]
    assert (function, grid, shared, stream) == ("the function", [3, 1, 1, 32, 1, 1], 0, 7)
    assert len(values) == len(kinds) == len(kernel.text.parameters)
    assert values[-4:] == (0, 5, 1, 1)  # no lengths, steps, direction, reverse
