"""The Triton that these tests run: any admitted one on a GPU; its interpreter, which runs elsewhere, in a newer one."""

from __future__ import annotations

import pytest
import torch


def triton() -> None:
    """Skips the module that calls this where there is none."""
    pytest.importorskip(
        "triton",
        minversion="3.6" if torch.cuda.is_available() else "3.7",
        reason="needs triton 3.6 or newer, without a GPU 3.7, whose interpreter runs with new numpys",
    )
