"""State dicts as PyTorch's modules give them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any


def like(state: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A state_dict of these values, which tells the versions of the modules as `state` does."""
    made = OrderedDict(values)
    if hasattr(state, "_metadata"):
        made._metadata = state._metadata  # type: ignore[attr-defined]
    return made
