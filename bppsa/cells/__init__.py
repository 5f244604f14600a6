"""Ready cells for `bppsa.scan`: recurrences that libraries run op by op, each a few lines of torch to copy and change.

    carry, ys = bppsa.scan(cell, cell.initial(batch), xs)

Each is a Module `(carry, x_t) -> (carry, y_t)`; carries are [B, H] tensors or tuples of them, and y_t is [B, H], where
a cell does not say otherwise.
J^T, the transposed Jacobian of one step, is named where it is not dense: a scan costs least there.
"""

from __future__ import annotations

from bppsa.cells.base import Cell, State
from bppsa.cells.continuous import CfC
from bppsa.cells.diagonal import SRU, DiagonalSSM, IndRNN, MinGRU
from bppsa.cells.gated import GroupedGRU, LayerNormLSTM, LiGRU, ResetGRU, ResetLSTM
from bppsa.cells.memory import DeltaNet
from bppsa.cells.selective import MambaStep
from bppsa.cells.xlstm import mLSTM, sLSTM

__all__ = [
    "SRU",
    "Cell",
    "CfC",
    "DeltaNet",
    "DiagonalSSM",
    "GroupedGRU",
    "IndRNN",
    "LayerNormLSTM",
    "LiGRU",
    "MambaStep",
    "MinGRU",
    "ResetGRU",
    "ResetLSTM",
    "State",
    "mLSTM",
    "sLSTM",
]
