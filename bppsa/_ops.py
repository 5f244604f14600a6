"""The recurrences as torch.library ops, for graphs that Dynamo traces: fake kernels say shapes, autograd is registered.

Unlike eager calls (`runtime.autograd`) an op may not return views: what the backward needs comes back as further outputs.
Arguments have no defaults, since the dispatcher drops an argument that equals its default and the kernels then miss it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa._recurrent import count_states_of, stack_of
from bppsa.runtime.autograd import Call
from bppsa.runtime.stack import Stack
from bppsa.runtime.sweep import Extent

Tensors = list[Tensor]
CALLS: dict[str, Any] = {}  # key -> what makes the Call of a scanned cell for an Extent


def forward(call: Call, tensors: Sequence[Tensor], save: bool) -> Tensors:
    """[*outputs, *private], no two of which share memory."""
    result = call.forward(tensors, save=save)
    dtype = tensors[0].dtype
    outputs = [o.contiguous().to(dtype) if save is False else o.to(dtype).clone() for o in result.outputs]
    return [*outputs, *result.exposed, *result.saved]
