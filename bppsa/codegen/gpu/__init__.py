"""Kernels for CUDA devices, as Triton and as CUDA C++ (`cuda`): printed, called, compiled ahead of time.

Belongs here: whatever knows Triton. Only `functions` and `scan_kernels` import it at once; all others do where they
need it, so that the package works without.

Does not belong here: what a kernel means (`codegen.language`), buffers and autograd (`runtime`).
"""
