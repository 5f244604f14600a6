"""What every ready cell is: a Module with a first carry."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bppsa.errors import InputValueError

State = tuple[Tensor, Tensor]


class Cell(nn.Module):
    """Base of the ready cells; `initial(batch)` is the carry before the first step: zeros, where a cell does not say
    otherwise."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def zeros(self, batch: int, *sizes: int) -> Tensor:
        """Return zeros [batch, *sizes] of the parameters' dtype and device; [batch, H] where no size is given."""
        parameter = next(self.parameters())
        return parameter.new_zeros(batch, *(sizes or (self.hidden_size,)))

    def initial(self, batch: int) -> Any:
        """Return zeros [batch, H], or a tuple of them where the carry is one."""
        return self.zeros(batch)


def width_of_heads(hidden_size: int, heads: int) -> int:
    """Return H / heads.

    Raises:
        InputValueError: that is no whole number of at least 1 (a ValueError).
    """
    if heads < 1 or hidden_size < 1 or hidden_size % heads:
        raise InputValueError(f"hidden_size={hidden_size}, heads={heads}: no heads of equal width")
    return hidden_size // heads
