"""From an op that writes in place to the one that returns what it writes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten


@lru_cache(maxsize=1024)
def functional(func: OpOverload) -> Any:
    """None where there is none. It takes the same arguments, whatever it is called: of `pow_.Scalar` it is not
    `pow.Scalar`, which takes the number first, but `pow.Tensor_Scalar`."""
    packet = getattr(aten, func._opname.removesuffix("_"), None)
    names = [func._overloadname, *packet.overloads()] if packet is not None else []
    ops = (getattr(packet, name, None) for name in names)
    return next((op for op in ops if op is not None and arguments(op) == arguments(func)), None)


def arguments(func: Any) -> list[str]:
    return [str(argument.type) for argument in func._schema.arguments]


# Views that a tensor becomes in place, and what makes them of it.
VIEWS_IN_PLACE = {
    aten.transpose_.default: aten.transpose.int,
    aten.t_.default: aten.t.default,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.unsqueeze_.default: aten.unsqueeze.default,
}
