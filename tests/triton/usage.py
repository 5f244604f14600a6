"""Compile a Triton kernel for a GPU that need not be there, and read what it uses of the processor's resources.

Triton keeps what it has compiled on disk by content, so asking again is cheap.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

from bppsa.codegen.gpu.native import PRECISION, module, options
from bppsa.codegen.gpu.native_scan import level_block, scan_of
from bppsa.codegen.gpu.native_sparse import MOST_SAMPLES, NUMBERS, WARPS
from bppsa.codegen.gpu.triton.frame import STRIDES
from bppsa.codegen.gpu.triton.print_triton import printed
from bppsa.codegen.language.ir import Buffer, Kernel, Kind

WARP = 32  # threads
ALIGNED = 16  # bytes or elements: what Triton tells the compiler of an argument at a call, if it is so
POINTER = {"float": "*fp32", "double": "*fp64"}
USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True)
class Usage:
    """registers: of a thread. stack: bytes a thread keeps in memory because registers ran out. shared: bytes of a
    program."""

    registers: int
    stack: int
    shared: int
    warps: int


def usage(kernel: Kernel, real: str, capability: int, precision: str = PRECISION, columns: int = 1) -> Usage:
    """What `kernel` takes on a GPU of compute capability `capability`, such as 90. columns: RUNNING rows a sample."""
    text = printed(kernel, real, columns)
    signature, aligned = arguments(kernel, real)
    signature |= {"scratch_at": POINTER[real]} if text.scratch else {}
    aligned |= {"scratch_at"} if text.scratch else set()
    signature |= {"lengths": "constexpr", **scalars(), "PRECISION": "constexpr"}
    constants = {"lengths": None, "PRECISION": precision if real == "float" else "ieee"}
    function = module(text.source).sweep
    return compiled(function, signature, constants, aligned, capability, text.warps, options(text.warps))


def boundaries_usage(width: int, diagonal: bool, real: str, capability: int) -> Usage:
    """What the scan over chunks takes, of a recurrence whose carries are `width` wide together."""
    kernel, block, warps = scan_of(width, diagonal)
    signature = dict.fromkeys(("running", "g", "entering"), POINTER[real])
    signature |= dict.fromkeys(("chunks", "rows", "direction", "pitch"), "i32")
    signature |= dict.fromkeys(("N", "P", "TRANSPOSED"), "constexpr")
    aligned = {"running", "g", "entering"}
    constants = {"N": width, "P": block, "TRANSPOSED": False}
    return compiled(kernel, signature, constants, aligned, capability, warps, {"num_warps": warps})


def level_usage(name: str, width: int, real: str, capability: int) -> Usage:
    """What a kernel of Blelloch's tree takes: "up_level", "middle" or "down_level"."""
    from bppsa.codegen.gpu.triton import scan_kernels

    block, warps = level_block(width)
    places = ("places",) if name == "middle" else ("lefts", "rights", "reached")
    numbers = ("count", "rows", "pitch") if name == "middle" else ("rows", "pitch")
    signature = dict.fromkeys(("running", "g"), POINTER[real]) | dict.fromkeys(places, "*i32")
    signature |= dict.fromkeys(numbers, "i32") | {"N": "constexpr", "P": "constexpr"}
    constants: dict[str, Any] = {"N": width, "P": block}
    if name == "up_level":
        signature |= {"PRECISION": "constexpr"}
        constants |= {"PRECISION": PRECISION if real == "float" else "ieee"}
    aligned = {"running", "g", *places}
    function = getattr(scan_kernels, name)
    return compiled(function, signature, constants, aligned, capability, warps, {"num_warps": warps})


def sums_usage(real: str, capability: int, *, matrix: bool) -> Usage:
    """What the numeric phase of a sparse product takes, or where `matrix` of a sparse matrix times vectors, for a whole
    batch."""
    from bppsa.codegen.gpu.triton import sparse_kernels

    signature = dict.fromkeys(("a", "b", "out"), POINTER[real]) | {"offsets": "*i64", "left": "*i32", "right": "*i32"}
    signature |= dict.fromkeys(("count", "samples"), "i32")
    signature |= {f"{name}_{step}": "i32" for name in ("a", "b", "out") for step in ("sample", "entry")}
    constants: dict[str, Any] = {"P": NUMBERS, "S": MOST_SAMPLES}
    constants |= {"left": None} if matrix else {}
    signature |= dict.fromkeys(constants, "constexpr")
    aligned = {"a", "b", "out", "offsets", "right"} | (set() if matrix else {"left"})
    function = sparse_kernels.sums_of_pairs
    return compiled(function, signature, constants, aligned, capability, WARPS, {"num_warps": WARPS})


def compiled(
    function: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    aligned: set[str],
    capability: int,
    warps: int,
    how: dict[str, Any],
) -> Usage:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    divisible = {(i,): [["tt.divisibility", ALIGNED]] for i, name in enumerate(signature) if name in aligned}
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=divisible)
    made = triton.compile(source, target=GPUTarget("cuda", capability, WARP), options=how)
    registers, stack = resources(made.asm["cubin"])
    return Usage(registers, stack, made.metadata.shared, warps)


def arguments(kernel: Kernel, real: str) -> tuple[dict[str, str], set[str]]:
    """The type of each argument of the printed function that stands for a buffer, and which of them are aligned."""
    types: dict[str, str] = {}
    aligned: set[str] = set()
    for b in kernel.arguments:
        types[f"{b.name}_at"] = POINTER[real]
        types |= {f"{b.name}_{stride}": "i32" for stride in STRIDES[b.kind]}
        aligned |= {f"{b.name}_at", *even_strides(b)}
    return types, aligned


def even_strides(buffer: Buffer) -> set[str]:
    if buffer.width % ALIGNED or buffer.kind is Kind.WEIGHT:
        return set()
    return {f"{buffer.name}_{stride}" for stride in STRIDES[buffer.kind]}


def scalars() -> dict[str, str]:
    return dict.fromkeys(("steps", "rows", "columns", "chunk", "direction", "reverse"), "i32")


def resources(cubin: bytes) -> tuple[int, int]:
    """(registers, stack) as the tool of CUDA that comes with Triton states them."""
    from triton import knobs

    tool: Any = knobs.nvidia.cuobjdump
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool.path, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = USAGE.search(said)
    assert found, said
    return int(found[1]), int(found[2])
