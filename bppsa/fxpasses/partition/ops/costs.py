"""What an op costs, in flops of matrix products: its own flops, and the bytes that it reads and writes as flops.

A core that multiplies matrices at 80 GFLOP/s moves about 15 GB/s through a pointwise op, and less through some others.
On an accelerator both rates are larger, in about the same ratio or a larger one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from bppsa.common.graph import tensors_in

aten = torch.ops.aten
PER_BYTE = 6.0


def of_layer(x: Tensor, *rest: Any, out_val: Any, **options: Any) -> float:
    """A recurrent layer in one op: each matrix of weights meets each row [.., I] of the sequence once."""
    weights = [leaf for leaf in tensors_in(rest) if leaf.dim() == 2]
    return 2.0 * (x.numel() // max(x.shape[-1], 1)) * sum(weight.numel() for weight in weights)


# Flops, also of what PyTorch's table has no formula for.
FORMULAS: Mapping[Any, Any] = {
    **flop_registry,
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[aten._scaled_dot_product_flash_attention],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        aten._scaled_dot_product_flash_attention_backward
    ],
    aten.mkldnn_rnn_layer: of_layer,
    aten._cudnn_rnn: of_layer,
}
NORMS = (aten.native_batch_norm, aten.cudnn_batch_norm, aten.miopen_batch_norm)
# How many times as long as a pointwise op they take for a byte, forward and backward together.
SWEEPS: Mapping[Any, float] = {
    **dict.fromkeys(NORMS, 2.0),
    **dict.fromkeys((aten.native_group_norm, aten._log_softmax), 2.0),
    **dict.fromkeys((aten.max_pool2d_with_indices, aten.max_pool3d_with_indices, aten.avg_pool2d), 4.0),
}
# Ops that read no more of a table than they write.
GATHERS = frozenset((aten.embedding, aten._embedding_bag, aten.index, aten.index_select, aten.gather))


def flops_of(op: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> float:
    """The flops of matrix products and the like, and one for each element written."""
    flops = product_flops(op, args, kwargs, out)
    return flops if op.is_view else flops + sum(tensor.numel() for tensor in tensors_in(out))


def product_flops(op: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> float:
    """The flops of matrix products and the like."""
    formula = FORMULAS.get(op._overloadpacket)
    return 0.0 if formula is None else float(formula(*args, **kwargs, out_val=out))


def cost_of(op: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> float:
    if op.is_view:
        return 0.0
    packet = op._overloadpacket
    written = sum(map(bytes_of, tensors_in(out)))
    operands = {id(tensor): bytes_of(tensor) for tensor in tensors_in((args, kwargs))}
    read = sum(min(each, written) if packet in GATHERS else each for each in operands.values())
    return flops_of(op, args, kwargs, out) + PER_BYTE * SWEEPS.get(packet, 1.0) * (read + written)


def bytes_of(tensor: Tensor) -> int:
    """Returns how many bytes a tensor has; an expanded one has those of its memory alone."""
    whole = tensor.numel() * tensor.element_size()
    return min(whole, tensor.untyped_storage().nbytes()) if tensor.layout is torch.strided else 0
