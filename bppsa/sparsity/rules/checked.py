"""Numbers that a sweep may give only where they are finite: else PyTorch has to run the call."""

from __future__ import annotations

import torch
from torch import Tensor

from bppsa.sparsity.operators.simple import Identity
from bppsa.sparsity.rules.matrix_ops import LIBRARY, MATRICES
from bppsa.sparsity.rules.registry import rule

LIBRARY.define("checked(Tensor x) -> Tensor", tags=(torch.Tag.pointwise,))
LIBRARY.impl("checked", lambda x: x.clone(), "CompositeImplicitAutograd")
CHECKED = torch.ops.bppsa.checked.default
LOOKED_AT = MATRICES | {CHECKED}  # the ops whose results are


@rule(CHECKED)
def checked(x: Tensor, *, out: Tensor) -> tuple[Identity]:
    return (Identity(x, out),)
