"""Kernels as C++: printed, built by the system's compiler, and called."""
