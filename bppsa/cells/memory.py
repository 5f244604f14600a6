"""Linear attention as a recurrence: a matrix a head, to which a step writes and from which it reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, silu

from bppsa.cells.base import Cell, width_of_heads


class DeltaNet(Cell):
    """Linear attention with the delta rule (Schlag et al. 2021, section 4.2; Yang et al. 2024, arXiv 2406.06484).

    S <- S + beta (v - S k) k^T, y = S q: a step puts v in the place of what S holds under the key k, to the part beta.
    beta is a sigmoid; q and k are SiLUs of projections, normalised by head to length 1, so that the step's transition
    I - beta k k^T never grows anything (Yang et al.). x_t is [B, I]; the carry S is [B, heads, D, D], values by keys,
    D = H / heads; y_t is [B, H].

    Raises:
        InputValueError: `heads` parts of equal width do not make `hidden_size` (a ValueError).
    """

    def __init__(self, input_size: int, hidden_size: int, heads: int = 4) -> None:
        super().__init__(hidden_size)
        self.heads, self.width = heads, width_of_heads(hidden_size, heads)
        self.query, self.key, self.value = (nn.Linear(input_size, hidden_size, bias=False) for _ in range(3))
        self.beta = nn.Linear(input_size, heads)

    def initial(self, batch: int) -> Tensor:
        """Return S, zeros [batch, heads, D, D]."""
        return self.zeros(batch, self.heads, self.width, self.width)

    def forward(self, S: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (part(x).unflatten(1, (self.heads, -1)) for part in (self.query, self.key, self.value))
        q, k = normalize(silu(q), dim=2), normalize(silu(k), dim=2)
        beta = torch.sigmoid(self.beta(x)).unsqueeze(2)
        error = beta * (v - torch.einsum("bhvk,bhk->bhv", S, k))
        S = S + torch.einsum("bhv,bhk->bhvk", error, k)
        return S, torch.einsum("bhvk,bhk->bhv", S, q).flatten(1)
