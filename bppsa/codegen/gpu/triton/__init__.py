"""Kernels of the language as Triton: tiles of registers, and the functions that printed text calls."""
