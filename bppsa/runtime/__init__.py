"""What runs when the model runs: buffers, matmuls around the loop, calls of kernels, and their place in autograd.

Belongs here: the sweep that allocates, multiplies and calls a kernel, the autograd functions and custom ops over it,
and the reference that does the same with ATen alone: the oracle of the tests, and what runs where no compiler is found.

Does not belong here: deciding what runs (`plan`), deriving or printing kernels (`fxpasses`, `codegen`), the classes
that replace modules (`frontend`), and the public functions (`api`).
"""
