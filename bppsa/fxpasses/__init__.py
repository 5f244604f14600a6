"""From a cell to graphs: capture, splitting a recurrence, differentiating its body.

Belongs here: what reads a cell or its graphs. `capture` records a cell as ATen ops, `recurrence` splits it into the
part that needs no carry (all steps at once, as matmuls), the body, and the tail; `jacobian` walks a body backwards with
the rules of `bppsa.sparsity`. A pass is a function from graph to graph, or to a dataclass of graphs, with its
conditions as asserts.

Does not belong here: what an op's transposed Jacobian is (`sparsity`), loops and memory layout (`codegen`), buffers and
autograd (`runtime`).
"""

import torch

from bppsa.fxpasses.theirs import RELEASE

NEWEST = 2, 14  # passes stand on PyTorch's internals
if RELEASE > NEWEST:
    raise ImportError(f"bppsa works with torch 2.11 to 2.14, and this is {torch.__version__}: pip install 'torch<2.15'")
