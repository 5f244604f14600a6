"""BPPSA_CHECK=1: the gradients of a backward beside those of autograd through PyTorch's own ops; a difference is an
error that names the gradient."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa.errors import GradientError
from bppsa.plan.strategy import Strategy
from bppsa.runtime.recurrent.scan.extent import Given

VARIABLE = "BPPSA_CHECK"
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
ROUNDING = 16  # eps of the largest gradient: what is left where the terms of a smaller one cancel
ELSEWHERE = {True: "run without bppsa", False: 'run with strategy="sequential", or without bppsa'}
FIRST = "first see whether PyTorch's own gradient moves as much when a weight is changed in its last digit: some cells"
FIRST += " amplify rounding past any tolerance, in float32 sooner than in float64. If not, report it; meanwhile"


def asked() -> bool:
    return os.environ.get(VARIABLE, "").lower() not in ("", "0", "false", "no", "off")


def compare(found: Given, expected: Given, given: Given, grads: Given, leading: tuple[int, int], of: Strategy) -> None:
    """found, expected: the gradients of `given`, None where there is none. grads: the outputs' cotangents; leading:
    how many of `given` are inputs, and how many after them initial carries. Raises GradientError."""
    rows = sum(leading)
    bad = torch.stack([strays(t) for t in (*given[:rows], *grads, *expected[:rows]) if t is not None]).any(0)
    anywhere = bool(bad.any()) or not all(e.isfinite().all() for e in expected[rows:] if e is not None)
    largest = max((norm(e[e.isfinite()]) for e in expected if e is not None), default=0.0)
    for at, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if ours is None and theirs is None:
            continue
        ours, theirs = (torch.zeros_like(given[at]) if g is None else g for g in (ours, theirs))
        may_stray = bad.unsqueeze(-1) if at < rows else torch.tensor(anywhere, device=bad.device)
        what = difference(ours, theirs, may_stray, largest)
        if what:
            mend = f"{FIRST} {ELSEWHERE[of.name in ('auto', 'sequential')]}"
            where = f"{name(at, leading)} {list(theirs.shape)}"
            raise GradientError(f"the gradient of {where} {what}; the backward's strategy was {of}; {mend}")


def difference(ours: Tensor, theirs: Tensor, may_stray: Tensor, largest: float) -> str:
    """What is wrong with ours, if anything. may_stray: where ours need not be finite; broadcasts."""
    here, there = ours.isfinite(), theirs.isfinite()
    if missing := int((here & ~there).sum()):
        return f"is finite in {missing} places where PyTorch's is not"
    if more := int((there & ~here & ~may_stray).sum()):
        return f"is not finite in {more} places of sequences in which PyTorch's is everywhere"
    size, error = norm(theirs[here]), norm(ours[here].double() - theirs[here].double())
    tolerance, eps = TOLERANCE[theirs.dtype], torch.finfo(theirs.dtype).eps
    if error <= tolerance * size + ROUNDING * eps * largest:
        return ""
    relative = error / size if size else float("inf")
    kind = str(theirs.dtype).removeprefix("torch.")
    return f"differs from PyTorch's by {relative:.1e} in relative norm (tolerance {tolerance:.0e} in {kind})"


def norm(tensor: Tensor) -> float:
    """The norm in float64, where squares of smaller floats do not overflow."""
    return tensor.double().norm().item()


def strays(tensor: Tensor) -> Tensor:
    """[T, B, n] or [B, n] -> bool [B]: whose sequences hold numbers that are not finite."""
    by_row = ~tensor.isfinite().all(-1)
    return by_row if by_row.dim() == 1 else by_row.any(0)


def name(at: int, leading: Sequence[int]) -> str:
    inputs, carries = leading
    if at < inputs:
        return f"input {at}"
    return f"initial carry {at - inputs}" if at < inputs + carries else f"weight {at - inputs - carries}"
