"""Tensors whose memory was freed, which a kernel would read all the same."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bppsa.errors import InputError

PAGE = 4096  # bytes at the begin of all addresses, which no memory has


def check_memory(tensors: Sequence[Tensor]) -> None:
    """Raises InputError for a tensor that has elements and no memory, as after `untyped_storage().resize_(0)`."""
    if min(map(Tensor.data_ptr, tensors), default=PAGE) >= PAGE:
        return
    for tensor in tensors:
        if tensor.numel() and not tensor.untyped_storage().nbytes():
            raise InputError(
                f"the memory of a tensor {list(tensor.shape)} {tensor.dtype} was freed before a recurrence's forward "
                f"or backward reads it, as untyped_storage().resize_(0) does; give it memory again"
            )
