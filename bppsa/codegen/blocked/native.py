"""The kernels of blocked images as Python functions: addresses and sizes in, nothing allocated.

Several Python threads may call them: a call keeps its state to itself, and ctypes releases the GIL.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen import build, print_cpp
from bppsa.codegen.blocked import print_conv
from bppsa.codegen.blocked.window import Window
from bppsa.codegen.ir import Kernel
from bppsa.codegen.native import INT, INT64, POINTER, REAL
from bppsa.codegen.print_cpp import skeleton

LANES = {torch.float32: 16, torch.float64: 8}  # samples in a block: a cache line of each

# p: an address, n: a number, i: a small one
SIGNATURES = {
    "pack": "ppnnnii",
    "unpack": "ppnnni",
    "add": "pppnii",
    "join": "ppppni",
    "max_pool": "ppppni",
    "max_pool_backward": "pppppni",
    "mean_pool": "pppppnii",
    "moments": "pppnnnni",
    "scale": "ppppnnnii",
    "norm_sums": "pppppnnnni",
    "norm_backward": "pppppppnnnni",
    "channel_sums": "ppnnni",
}
CONV_SIGNATURES = {
    "gather": "pppni",
    "reorder": "pppni",
    "forward": "pppppnnnnnii",
    "backward": "pppppnnnnni",
    "weights": "ppppppnnnnnnip",
}
TYPES = {"p": POINTER, "n": INT64, "i": INT}


@dataclass(frozen=True)
class Functions:
    """A library's entry points. An argument that is a tensor, or None, is passed as its address."""

    entries: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        entry = self.entries[name]

        def call(*arguments: Any) -> None:
            entry(*[a.data_ptr() if isinstance(a, Tensor) else a for a in arguments])

        return call


def functions(source: str, signatures: dict[str, str]) -> Functions:
    library = build.library(source)
    entries = {}
    for name, signature in signatures.items():
        entry = entries[name] = getattr(library, f"bppsa_{name}")
        entry.argtypes, entry.restype = [TYPES[letter] for letter in signature], None
    return Functions(entries)


@functools.cache
def images(dtype: torch.dtype) -> Functions:
    """Raises `BuildError`."""
    return functions(images_source(REAL[dtype]), SIGNATURES)


def images_source(real: str) -> str:
    return "\n".join([f"using real = {real};", *map(skeleton, ("vec.h", "arena.h", "blocked.h", "images.h"))])


@functools.cache
def conv(window: Window, dtype: torch.dtype) -> Functions:
    """Raises `BuildError`."""
    return functions(print_conv.source(window, REAL[dtype], is_wide()), CONV_SIGNATURES)


def prepare(windows: Sequence[Window], kernels: Sequence[Kernel], dtype: torch.dtype) -> None:
    """Build what `conv` of each window, and each kernel, will need, side by side. Raises `BuildError`."""
    sources = {print_conv.source(window, REAL[dtype], is_wide()) for window in windows}
    sources |= {print_cpp.source(kernel, REAL[dtype]) for kernel in kernels}
    build.build_many([images_source(REAL[dtype]), *sources])


@functools.cache
def is_wide() -> bool:
    return "avx512vl" in build.cpu_features().split()


def numbers(values: Sequence[int]) -> Any:
    """An int64 array for an argument `p`; the caller keeps it alive."""
    return (ctypes.c_int64 * len(values))(*values)
