"""Call a printed CUDA kernel on tensors of a GPU: compiled by NVRTC, kept on disk, launched by CUDA's driver."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.gpu.cuda.compile import cubin
from bppsa.codegen.gpu.cuda.print_cuda import STRIDES, CudaText, printed
from bppsa.codegen.gpu.native import TritonKernel, row_lengths
from bppsa.codegen.language.ir import Kernel, Kind
from bppsa.errors import BuildError

TYPES = {"int": ctypes.c_int, "long long": ctypes.c_longlong}
PartialRows = list[tuple[Tensor, Tensor]]  # a COLUMN_SUM, and a part of it from each row


def cuda_kernel(kernel: Kernel, real: str) -> CudaKernel | TritonKernel:
    """`kernel` for elements of `real`, "float" or "double"; Triton's where its weights do not fit into registers."""
    text = printed(kernel, real)
    return CudaKernel(kernel, real, text) if isinstance(text, CudaText) else TritonKernel(kernel, real)


class CudaKernel:
    """A printed kernel. Called as `interpret.run` is, on tensors of one GPU; in chunks Triton's runs.

    Raises BuildError where NVRTC is missing, or does not compile it."""

    def __init__(self, kernel: Kernel, real: str, text: CudaText) -> None:
        self.kernel, self.text = kernel, text
        self.in_chunks = functools.cache(lambda: TritonKernel(kernel, real))
        self.types = [TYPES.get(kind, ctypes.c_void_p) for kind, _ in text.parameters]
        self.loaded: dict[int, Any] = {}  # the function, by device

    def __call__(
        self,
        tensors: Sequence[Tensor],
        *,
        steps: int,
        rows: int,
        active: Tensor | None = None,
        reverse: bool = False,
        chunk: int | None = None,
    ) -> None:
        """Is called as a `TritonKernel` is."""
        if chunk is not None:
            self.in_chunks()(tensors, steps=steps, rows=rows, active=active, reverse=reverse, chunk=chunk)
            return
        given, sums, lengths = arguments_of(self.kernel, tensors, steps, rows, active, reverse)
        if rows:
            device = tensors[0].device
            with torch.cuda.device(device):
                self.launch(given, rows, device)
        for total, parts in sums:
            torch.sum(parts, 0, out=total)
        del lengths  # the kernel is in the stream's order, and so is who gets this memory next

    def launch(self, given: Sequence[int], rows: int, device: torch.device) -> None:
        from cuda.bindings import driver

        index = torch.cuda.current_device() if device.index is None else device.index
        if index not in self.loaded:
            self.loaded[index] = load(cubin(self.text.source, torch.cuda.get_device_capability(index)))
        stream = driver.CUstream(torch.cuda.current_stream(index).cuda_stream)
        block = (self.text.lanes.threads, 1, 1)
        arguments = (tuple(given), tuple(self.types))
        check(driver.cuLaunchKernel(self.loaded[index], rows, 1, 1, *block, 0, stream, arguments, 0))


def load(code: bytes) -> Any:
    """The function of a compiled kernel, in the current device's context."""
    from cuda.bindings import driver

    module = check(driver.cuModuleLoadData(code))
    return check(driver.cuModuleGetFunction(module, b"sweep"))


def check(result: tuple[Any, ...]) -> Any:
    """What a call of CUDA's driver returns besides its error code."""
    error, *values = result
    if int(error):
        raise BuildError(f"CUDA's driver answers {error!r}")
    return values[0] if values else None


def arguments_of(
    kernel: Kernel, tensors: Sequence[Tensor], steps: int, rows: int, active: Tensor | None, reverse: bool
) -> tuple[list[int], PartialRows, Tensor | None]:
    """What the printed function takes, in order; column sums, which are to be added up afterwards; and the lengths of
    rows, to be kept until the kernel has run. active: int64 [T], never rising."""
    given: list[int] = []
    sums: PartialRows = []
    for b, tensor in zip(kernel.arguments, tensors, strict=True):
        if b.kind is Kind.COLUMN_SUM:
            sums.append((tensor, tensor.new_zeros(rows, b.width)))
            tensor = sums[-1][1]
        given += [tensor.data_ptr(), *tensor.stride()[: len(STRIDES[b.kind])]]
    lengths = None if active is None else row_lengths(active, rows).to(tensors[0].device)
    ascending = kernel.along != reverse
    given += [0 if lengths is None else lengths.data_ptr(), steps, 1 if ascending else -1, int(reverse)]
    return given, sums, lengths
