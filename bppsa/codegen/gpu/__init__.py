"""Kernels for CUDA devices, as Triton and as CUDA C++ (`cuda`): printed, called, compiled ahead of time, and their
precision.

Belongs here: whatever knows Triton. Only `functions` and `scan_kernels` import it at once; all others do where they
need it, so that the package works without.

Does not belong here: what a kernel means (`language.ir`, `language.interpret`), buffers and autograd (`runtime`).
"""
