"""Calls that a recording would lose: the dispatcher does not see them, or sees them without their purpose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bppsa.errors import Reason

HANDS_OUT = Reason("hands a tensor's values to Python", mend="stay in torch ops")
BENDS_GRADIENT = Reason("changes what autograd does", mend="use detach() and torch ops")
REFUSED: dict[Any, Reason] = {
    **dict.fromkeys((Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.data_ptr, Tensor.__dlpack__), HANDS_OUT),
    **dict.fromkeys((Tensor.register_hook, Tensor.backward, Tensor.retain_grad), BENDS_GRADIENT),
    **dict.fromkeys((torch.autograd.grad, torch.autograd.backward), BENDS_GRADIENT),
    Tensor.data.__get__: BENDS_GRADIENT,  # type: ignore[attr-defined]
}
