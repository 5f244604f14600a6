"""A recurrence's native calls as entries that a program may name (skeleton/calls.h)."""

from __future__ import annotations

import functools
from typing import Any

import torch

from bppsa.codegen.cpu import build, entries, products
from bppsa.codegen.cpu.entries import MOST_ARGUMENTS, Entry, EntryPoints
from bppsa.codegen.cpu.native import INT, INT64, POINTER, REAL

SWEEP, PRODUCTS = 10, 3  # arguments before those of the kernel, and before the words of the products


@functools.cache
def entry_points(dtype: torch.dtype) -> EntryPoints:
    """Raises `BuildError`."""
    return EntryPoints(build.library(products.source(REAL[dtype])))


@functools.cache
def runner(dtype: torch.dtype) -> Any:
    return entries.runner(entry_points(dtype).library)


def sweep(dtype: torch.dtype, arguments: int) -> Entry:
    """The entry of a kernel with so many arguments."""
    return Entry(entries.address_of(entry_points(dtype).library, "bppsa_sweep_call"), SWEEP + arguments)


def multiply(dtype: torch.dtype, words: int) -> Entry:
    return Entry(entries.address_of(entry_points(dtype).library, "bppsa_products_call"), PRODUCTS + words)


@functools.cache
def products_workspace(dtype: torch.dtype) -> Any:
    """(address of words, rows, threads) -> bytes."""
    found = entry_points(dtype).library.bppsa_products_workspace
    found.argtypes, found.restype = (POINTER, INT64, INT), INT64
    return found


def fits(arguments: int, words: int) -> bool:
    """Whether a program may call a kernel with so many arguments, and products of so many words."""
    return max(SWEEP + arguments, PRODUCTS + words) <= MOST_ARGUMENTS
