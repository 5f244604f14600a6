"""Where there is a GPU its kernels run on it; elsewhere Triton's interpreter runs them (tests/conftest.py)."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", minversion="3.6", reason="needs triton 3.6 or newer")
