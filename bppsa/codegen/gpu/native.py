"""Call a printed Triton kernel on tensors: the GPU's counterpart of `native.py`."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen import cache
from bppsa.codegen.gpu.triton.frame import PrintedTriton
from bppsa.codegen.gpu.triton.print_triton import printed
from bppsa.codegen.language.ir import Kernel, Kind
from bppsa.common.recent import remember
from bppsa.errors import BuildError

PRECISION = "tf32x3"  # three TF32 products for one of float32, as exact as one; "tf32" alone keeps 10 bits of 23


@functools.lru_cache(maxsize=256)
def module(source: str) -> ModuleType:
    """The module of a printed text. It is loaded from a file, because Triton reads a function's source from there."""
    name = f"bppsa_{hashlib.sha256(source.encode()).hexdigest()[:40]}"

    def write(path: Path) -> None:
        path.write_text(source)

    with cache.entry(f"{name}.py", write) as path:
        return _load(name, path)


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    exec(compile(path.read_text(), str(path), "exec"), loaded.__dict__)  # leaves no bytecode beside the kept file
    return loaded


class TritonKernel:
    """`kernel` for elements of `real`, "float" or "double". Called as `interpret.run` is, and in chunks.

    precision: of float32 products; None for PRECISION, or plain TF32 where PyTorch's matmuls are told to use it
    (`torch.set_float32_matmul_precision("high")`)."""

    def __init__(self, kernel: Kernel, real: str, precision: str | None = None) -> None:
        if importlib.util.find_spec("triton") is None:
            raise BuildError("Triton is not there to compile kernels for a GPU; pip install triton")
        self.kernel, self.real = kernel, real
        self.asked = precision if real == "float" else "ieee"
        self.texts: dict[int, PrintedTriton] = {}  # by how many columns share a sample

    @property
    def precision(self) -> str:
        plain = torch.backends.cuda.matmul.fp32_precision == "tf32"
        return self.asked or ("tf32" if plain else PRECISION)

    def text(self, columns: int) -> PrintedTriton:
        if columns not in self.texts:
            self.texts[columns] = printed(self.kernel, self.real, columns)
        return self.texts[columns]

    def __call__(
        self,
        tensors: Sequence[Tensor],
        *,
        steps: int,
        rows: int,
        active: Tensor | None = None,
        reverse: bool = False,
        columns: int = 1,
        chunk: int | None = None,
    ) -> None:
        """Run in place on `tensors`, one for each of `kernel.arguments`, all on one device, of type `real` and with the
        last dimension contiguous; a WEIGHT may have any strides. active: int64 [T], never rising.

        chunk: steps of a chunk, by default all. Then a RUNNING buffer may be [B, n]; with chunks it is [chunks, B, n],
        chunk c's values at its c. A STATE that chunks write is [chunks, chunk + 1, B, n], any other [T + 1, B, n]."""
        buffers = self.kernel.arguments
        if len(tensors) != len(buffers):
            raise ValueError(f"kernel {self.kernel.name} takes {len(buffers)} tensors, not {len(tensors)}")
        chunk = steps if chunk is None else chunk
        text = self.text(columns)
        programs = text.block.programs(rows, columns) * text.units * -(-steps // max(chunk, 1))
        partial: list[tuple[Tensor, Tensor]] = []
        given: list[Tensor | int] = []
        for b, tensor in zip(buffers, tensors, strict=True):
            if b.kind is Kind.COLUMN_SUM:
                partial.append((tensor, tensor.new_zeros(programs, b.width)))
                tensor = partial[-1][1]
            given += [tensor, *strides(b.kind, tensor, chunk)]
        given += [tensors[0].new_empty(programs * text.scratch)] if text.scratch else []
        if programs:
            lengths = None if active is None else row_lengths(active, rows).to(tensors[0].device)
            ascending = self.kernel.along != reverse
            scalars = (steps, rows * columns, columns, chunk, 1 if ascending else -1, int(reverse))
            arguments = [*given, lengths, *scalars, self.precision]
            launch(self.kernel.name, module(text.source).sweep, programs, arguments, options(text.warps))
        for total, parts in partial:
            torch.sum(parts, 0, out=total)


# What Triton says of its passes and its launcher, for which it has no errors of its own.
OF_COMPILING = ("PassManager::run failed", "Failed to find C compiler")
_refused: dict[tuple[int, int], tuple[Any, str]] = {}  # what did not compile, by function and device: it, and why
# What was compiled for which arguments, with the function, so that its id stays its own. Triton looks its own up, too,
# but takes longer for it than many of these kernels run.
_compiled: dict[Hashable, tuple[Any, Any]] = {}
MOST_COMPILED = 4096


def launch(name: str, function: Any, programs: int, arguments: Sequence[Any], how: dict[str, Any]) -> None:
    """Run `programs` of a function on the device of its first tensor. Raises BuildError where Triton cannot compile it,
    and again at once when it is asked for again."""
    device = next(a.device for a in arguments if isinstance(a, Tensor))
    elsewhere = device.type == "cuda" and device.index != torch.cuda.current_device()
    with torch.cuda.device(device) if elsewhere else contextlib.nullcontext():
        key = id(function), device.index, *how.values(), *map(seen, arguments)
        known = _compiled.get(key)
        if known is not None:
            known[1][programs, 1, 1](*arguments)
            return
        kernel = compile_and_run(name, function, programs, arguments, how, -1 if device.index is None else device.index)
        if kernel is not None:  # not from Triton's interpreter
            remember(_compiled, key, (function, kernel), MOST_COMPILED)


def seen(argument: Any) -> Hashable:
    """What Triton compiles for: the type and alignment of a tensor, and of numbers whatever they are."""
    return (argument.dtype, argument.data_ptr() % 16) if isinstance(argument, Tensor) else argument


def compile_and_run(
    name: str, function: Any, programs: int, arguments: Sequence[Any], how: dict[str, Any], device: int
) -> Any:
    """The compiled kernel."""
    from triton.errors import TritonError

    key = id(function), device
    if key in _refused:
        raise BuildError(_refused[key][1])
    try:
        return function[(programs,)](*arguments, **how)
    except (TritonError, subprocess.CalledProcessError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith(OF_COMPILING):
            raise
        why = f"Triton does not compile the kernel {name!r} for this GPU: {error}".splitlines()[0]
        remember(_refused, key, (function, why), MOST_COMPILED)
        raise BuildError(why) from error


def options(warps: int) -> dict[str, Any]:
    """The text itself loads a step ahead, so Triton need not (`num_stages`). A thread of a small program may have all
    registers there are names for (`maxnreg`): left alone, the assembler spills a few to fit one program more."""
    registers = {"maxnreg": 255} if warps <= 4 else {}
    return {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": True, **registers}


def strides(kind: Kind, tensor: Tensor, chunk: int) -> tuple[int, ...]:
    if kind is Kind.RUNNING and tensor.dim() == 2:
        return 0, tensor.stride(0)
    if kind is Kind.STATE:  # time goes on through all chunks, each of which has a row more than steps
        apart, *rows = tensor.stride()[:-1] if tensor.dim() == 4 else (chunk * tensor.stride(0), *tensor.stride()[:2])
        return (apart - chunk * rows[0], *rows)
    return () if kind in (Kind.VECTOR, Kind.COLUMN_SUM) else tensor.stride()[:2]


def row_lengths(active: Tensor, rows: int) -> Tensor:
    """How many steps each row takes part in, int64 [B]."""
    return (active[:, None] > torch.arange(rows, device=active.device)).sum(0)
