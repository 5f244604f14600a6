"""What PyTorch itself cannot do on the machine at hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def skip_without_lstm_of_bfloat16() -> None:
    """oneDNN has that LSTM for some CPUs only (AVX-512); on others PyTorch's own raises under autocast."""
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            nn.LSTM(2, 2, dtype=torch.float32)(torch.zeros(1, 1, 2, dtype=torch.float32))
    except RuntimeError as error:
        pytest.skip(f"PyTorch's own nn.LSTM: {error}")
