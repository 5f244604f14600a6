"""The kernels of blocked images as addresses that a table of calls may name, and what runs such a table."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch

from bppsa.codegen.cpu import build, entries
from bppsa.codegen.cpu.entries import Entry, EntryPoints
from bppsa.codegen.cpu.native import INT, INT64, POINTER, REAL
from bppsa.codegen.cpu.print_cpp import skeleton
from bppsa.codegen.language.ir import Kernel
from bppsa.codegen.sparse_conv import print_conv, print_pointwise
from bppsa.codegen.sparse_conv.window import Window

LANES = {dtype: print_conv.LANES[real] for dtype, real in REAL.items()}


@functools.cache
def images(dtype: torch.dtype) -> EntryPoints:
    """Raises `BuildError`."""
    return EntryPoints(build.library(images_source(REAL[dtype])))


def images_source(real: str) -> str:
    texts = map(
        skeleton,
        (
            "vec.h",
            "intrinsics.h",
            "arena.h",
            "images/call.h",
            "images/blocked.h",
            "images/images.h",
            "images/norm.h",
            "images/kept.h",
            "images/table.h",
        ),
    )
    return "\n".join([f"using real = {real};", *texts])


@functools.lru_cache(maxsize=1024)
def conv(window: Window, dtype: torch.dtype) -> EntryPoints:
    """Raises `BuildError`."""
    return EntryPoints(build.library(print_conv.source(window, REAL[dtype])))


def weights_room(kernels: EntryPoints, row_size: int) -> int:
    """Reals that `weights` of `conv` works in, for each thread."""
    room = kernels.library.bppsa_weights_room
    room.argtypes, room.restype = (INT64,), INT64
    return int(room(row_size))


@functools.lru_cache(maxsize=1024)
def pointwise(kernel: Kernel, dtype: torch.dtype) -> Entry:
    """Raises `BuildError`."""
    return EntryPoints(build.library(print_pointwise.source(kernel, REAL[dtype]))).pointwise


def prepare(windows: Sequence[Window], kernels: Sequence[Kernel], dtype: torch.dtype) -> None:
    """Build what `conv` of each window, and each kernel, will need, side by side. Raises `BuildError`."""
    sources = {print_conv.source(window, REAL[dtype]) for window in windows}
    sources |= {print_pointwise.source(kernel, REAL[dtype]) for kernel in kernels}
    build.build_many([images_source(REAL[dtype]), *sources])


@functools.cache
def runner(dtype: torch.dtype) -> Any:
    """Raises `BuildError`."""
    return entries.runner(build.library(images_source(REAL[dtype])))


@functools.cache
def adder(dtype: torch.dtype) -> Any:
    """`bppsa_add_at` of skeleton/images/kept.h. Raises `BuildError`."""
    add = build.library(images_source(REAL[dtype])).bppsa_add_at
    add.argtypes, add.restype = (POINTER, POINTER, POINTER, ctypes.c_double, INT64, INT), None
    return add
