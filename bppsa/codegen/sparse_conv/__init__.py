"""Kernels of feed-forward layers in the blocked layout: convolutions whose weights are mostly zero, and what stands
between them.

The blocked layout of `[B, C, H, W]` is `[B/L, C, H, W, L]`: the L samples of a block lie side by side, and fill one
cache line (L = 16 of float32, 8 of float64). So one load brings a pixel of a whole block, a weight is one number for
all of it, and no shape of an image is awkward. What a batch lacks to whole blocks is zeros.

Belongs here: which taps meet which pixels (`window`), the texts of the kernels (`print_conv`, ...), and how they are
called on tensors (`native`).

Does not belong here: which layers run so, and what a layer is (`bppsa.frontend.pruned`, `bppsa.runtime.sparse_conv`).
"""
