"""Linear algebra on small matrices, one for each row: ops that a cell's body holds, each with a J^T rule and a kernel.

Run as they are they are PyTorch's own. What a rule or a kernel needs besides, and PyTorch does not, is given with them:
`eye` and `below`, bool [n, n], tell which entries are on the diagonal and below it; `inverse` is that of `a`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LinAlgError: Any = torch.linalg.LinAlgError  # type: ignore[attr-defined]
LIBRARY = torch.library.Library("bppsa", "FRAGMENT")


def defined(name: str, given: str, run: Callable[..., Tensor], tags: tuple[torch.Tag, ...] = ()) -> Any:
    """The op, which autograd sees as the ops that `run` calls."""
    LIBRARY.define(f"{name}({given}) -> Tensor", tags=tags)
    LIBRARY.impl(name, run, "CompositeImplicitAutograd")
    return getattr(torch.ops.bppsa, name).default


def as_one(op: Any, *args: Tensor) -> Tensor:
    """What the op gives, seen as that op by whoever writes ops down: autograd would take it apart before."""
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args)


def by_substitution(a: Tensor, eye: Tensor, below: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(a, eye.to(a.dtype).expand_as(a), upper=False)


INVERSE = defined("inverse", "Tensor a, Tensor eye", lambda a, eye: torch.linalg.inv(a))
# Lower ones, of lower triangles: what stands above is not read.
CHOLESKY = defined("cholesky", "Tensor a, Tensor eye, Tensor below", lambda a, eye, below: torch.linalg.cholesky(a))
LOWER_INVERSE = defined("lower_inverse", "Tensor a, Tensor eye, Tensor below", by_substitution)
GRAM_INVERSE = defined("gram_inverse", "Tensor a, Tensor eye", lambda a, eye: torch.cholesky_inverse(a))
DETERMINANT = defined("determinant", "Tensor a, Tensor inverse", lambda a, inverse: torch.linalg.det(a))
LOG_DETERMINANT = defined("log_determinant", "Tensor a, Tensor inverse", lambda a, inverse: torch.linalg.slogdet(a)[1])
SIGN = defined("sign_of_determinant", "Tensor a, Tensor inverse", lambda a, inverse: torch.linalg.slogdet(a)[0])
# A kernel gives NaN for a matrix of which PyTorch raises an error, or might: its numbers cannot be relied on.
MATRICES = frozenset({INVERSE, CHOLESKY, LOWER_INVERSE, GRAM_INVERSE, DETERMINANT, LOG_DETERMINANT, SIGN})
# Gives x as it is, where that is finite: NaN is what PyTorch would have to decide. CHECKED is no linear algebra, and is
# looked at as that is.
CHECKED = defined("checked", "Tensor x", lambda x: x.clone(), (torch.Tag.pointwise,))
LOOKED_AT = MATRICES | {CHECKED}
