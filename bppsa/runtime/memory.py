"""Tensors whose memory was freed, which a kernel would read all the same."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bppsa.errors import InputError

LOW = 1 << 32  # addresses that memory seldom has: where it was freed, the address is what was its offset in there


def check_memory(tensors: Sequence[Tensor]) -> None:
    """Raises InputError for a tensor that has elements and no memory, as after `untyped_storage().resize_(0)`."""
    if min(map(Tensor.data_ptr, tensors), default=LOW) >= LOW:
        return
    for tensor in tensors:
        if tensor.numel() and not tensor.untyped_storage().nbytes():
            raise InputError(
                f"the memory of a tensor {list(tensor.shape)} {tensor.dtype} was freed before a recurrence's forward "
                f"or backward reads it, as untyped_storage().resize_(0) does; give it memory again"
            )
