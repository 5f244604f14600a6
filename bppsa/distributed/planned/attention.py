"""Attention on the meta device as one op that keeps no matrix of scores, as it runs on CPUs and accelerators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
RANK = 4  # of what the fused op takes: [B, heads, T, width]


class FusedAttention(TorchFunctionMode):
    """Within it, calls of scaled_dot_product_attention that a fused kernel can take are one op."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            return fused(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """query, key, value: [B, heads, T, width]."""
    if query.dim() != RANK or query.shape[-1] != value.shape[-1]:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    made = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )
    return made[0]
