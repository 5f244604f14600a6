"""Results of a scan with all gradients, compared with those of a plain loop over the steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import bppsa
from bppsa.codegen.assembling import program
from bppsa.codegen.assembling.reduction import reduction
from bppsa.codegen.language import interpret
from bppsa.codegen.language.ir import Kernel
from bppsa.common.chain import Recurrence
from bppsa.decisions import Decision
from bppsa.frontend.call_log import collecting
from bppsa.frontend.planning.predict import choose_scan
from bppsa.fxpasses.cell.diagonal import with_diagonals
from bppsa.fxpasses.cell.structure import structure_of
from bppsa.fxpasses.network import jacobian
from bppsa.plan.choose import Choice
from bppsa.plan.strategy import Strategy
from bppsa.runtime.recurrent.reduce import Reduction
from bppsa.runtime.recurrent.reference import loop
from bppsa.runtime.recurrent.sweep import Sweep
from tests.scan.zoo import Example

Scan = Callable[..., tuple[Any, Any]]


def fused(recurrence: Recurrence, dtype: torch.dtype, asked: Strategy, *how: Any) -> Choice:
    """What is chosen, save that auto is the one sweep also where the loop is predicted to be faster."""
    return choose_scan(recurrence, dtype, Strategy("sequential") if asked.name == "auto" else asked, *how)


def interpreters(kernels: Sequence[Kernel]) -> list[Callable[..., None]]:
    return [functools.partial(interpret.run, kernel) for kernel in kernels]


@functools.lru_cache
def interpreted(
    recurrence: Recurrence, dtype: torch.dtype = torch.float64, inline: bool = False, device: str = "cpu"
) -> Sweep:
    """What `compile_recurrence` gives, run by the language's definition in place of machine code."""
    built = program.build(recurrence, jacobian.transpose(recurrence), inline=inline)
    return Sweep(built, dtype, interpreters, functools.partial(reduction_of, recurrence, inline))


def reduction_of(recurrence: Recurrence, inline: bool, *, diagonal: bool = False) -> Reduction:
    taken, weights = with_diagonals(recurrence) if diagonal else (recurrence, ())
    structure = structure_of(taken)
    transposed, simplified = jacobian.transpose(recurrence), jacobian.transpose(taken)
    kernel = reduction(recurrence, transposed, inline=inline, diagonal=structure.width == 1, simplified=simplified)
    run = functools.partial(interpret.run, kernel)
    return Reduction(structure, kernel, recurrence.carries, torch.float64, run, weights)


def leaves(*trees: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(trees) if isinstance(leaf, Tensor)]


def weighted(outputs: Sequence[Tensor]) -> Tensor:
    """A loss that reads every element with a weight of its own; both parts of a complex one."""
    return sum(
        (o * torch.linspace(0.5, 1.5, o.numel(), dtype=o.dtype, device=o.device).view_as(o)).sum()
        for o in map(as_real, outputs)
    )


def as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def results(scan: Scan, example: Example, *, reverse: bool = False) -> tuple[list[Tensor], list[Tensor | None]]:
    """All leaves of the last carry and of the ys; the gradients of a loss that reads each of them."""
    outputs = leaves(scan(example.cell, example.carry, example.xs, reverse=reverse))
    wanted = [t for t in (*leaves(example.carry, example.xs), *example.parameters) if t.requires_grad]
    read = [o for o in outputs if o.requires_grad]
    if not read:
        return outputs, [None] * len(wanted)
    return outputs, list(torch.autograd.grad(weighted(read), wanted, allow_unused=True))


def close(got: Tensor, expected: Tensor, tolerance: float) -> None:
    """By relative norm; NaN and infinities in the same places."""
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    got, expected = as_real(got), as_real(expected)
    if not expected.is_floating_point():
        assert torch.equal(got, expected)
        return
    finite = expected.isfinite()
    assert torch.equal(got[~finite].nan_to_num(), expected[~finite].nan_to_num())
    assert torch.equal(got.isfinite(), finite)
    error, scale = (got - expected)[finite].norm(), expected[finite].norm()
    assert error <= tolerance * max(scale, 1e-2), f"{error / scale:.1e}"


def same(
    got: Sequence[Tensor | None], expected: Sequence[Tensor | None], tolerance: float = 1e-10, *, absent: bool = False
) -> None:
    """A gradient that PyTorch does not have may be zeros. absent: one that is zeros may not be there, as of what only
    reaches a part of a complex value that nothing reads."""
    for ours, theirs in zip(got, expected, strict=True):
        if absent and ours is None:
            assert theirs is None or not theirs.any()
        elif theirs is None:
            assert ours is None or not ours.any()
        else:
            assert ours is not None
            close(ours, theirs, tolerance)


def check(example: Example, *, reverse: bool = False, tolerance: float = 1e-10, absent: bool = False) -> Decision:
    """bppsa.scan against the loop, values and gradients; gives what was decided."""
    with collecting() as taken:
        got = results(bppsa.scan, example, reverse=reverse)
    expected = results(loop, example, reverse=reverse)
    same(got[0], expected[0], tolerance)
    same(got[1], expected[1], tolerance, absent=absent)
    return taken[-1]


def check_inference(example: Example, *, reverse: bool = False, tolerance: float = 1e-10) -> None:
    """Without gradients other kernels run, which keep less."""
    with torch.no_grad():
        got, expected = (leaves(scan(*example[:3], reverse=reverse)) for scan in (bppsa.scan, loop))
    same(got, expected, tolerance)
