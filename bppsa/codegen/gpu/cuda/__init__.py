"""Kernels as CUDA C++: a warp or a block of threads sweeps one row, each thread owns columns, and weights stay in its
registers. For steps that wait for each other, where the dots of Triton's tiles take ten times as long."""
