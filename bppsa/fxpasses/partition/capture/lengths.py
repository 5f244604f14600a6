"""`len(x)` of a tensor in a forward: a number to Python, and here the size that it stands for.

Python makes a plain number of what `len` gives, with which the graph would hold for one batch size only. So while a
model is exported, `len` is a global name of the user's functions, of a function that gives the size.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any

from torch import Tensor

LEN = "len"


def length(value: Any) -> Any:
    """Stands for `len` meanwhile."""
    return value.shape[0] if isinstance(value, Tensor) and value.dim() else builtins.len(value)


def asks_for_length(code: CodeType) -> bool:
    return LEN in code.co_names or any(asks_for_length(c) for c in code.co_consts if isinstance(c, CodeType))


@contextmanager
def lengths_as_sizes(namespaces: Sequence[dict[str, Any]]) -> Iterator[None]:
    """namespaces: the global names of functions that ask for `len`."""
    ours = [names for names in namespaces if LEN not in names]
    for names in ours:
        names[LEN] = length
    try:
        yield
    finally:
        for names in ours:
            del names[LEN]
