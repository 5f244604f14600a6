"""How a Jacobian's values are computed, kept for the next call: by colours or by products, or one row at a time where
there is no rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Size, Tensor, nn

from bppsa.decisions import Report
from bppsa.errors import ArgumentError, BudgetError, InputError, Reason, kind_of
from bppsa.sparsity import Network, Pattern, TransposedJacobian
from bppsa.sparsity.multiplied import Multiplied
from bppsa.sparsity.patterns.colour import Colouring
from bppsa.sparsity.patterns.flat import flat
from bppsa.sparsity.patterns.windows import transposed

NS_A_MULTIPLICATION, NS_A_CALL = 0.3, 20_000  # as measured on one core of an AMD EPYC (Zen 4), for float32
SLICE = 1 << 19  # numbers of a product's widest value: seeds are taken together as long as it stays in the cache


class Outdated(Exception):
    """A tensor whose values decide which entries of J can be non-zero has changed since the plan was made."""


@dataclass(frozen=True, eq=False, repr=False)
class JacobianPlan:
    """`plan(x)` is J at x, detached: [M, N] where x is [1, *n], else [B, M, N]; for every x of the shape it was made
    for.

    `report` tells how it is computed and why, with the numbers of colours and non-zeros.
    """

    run: Callable[[Tensor], Tensor]
    size: Size
    dtype: torch.dtype
    device: torch.device
    report: Report
    again: Callable[[Tensor], JacobianPlan] | None = None  # makes another plan where this one is outdated

    def __repr__(self) -> str:
        return f"JacobianPlan for x {list(self.size)} {self.dtype} on {self.device}: {self.report}"

    def __call__(self, x: Tensor) -> Tensor:
        """Raises InputError (a RuntimeError) for another shape, dtype or device, ArgumentError for no tensor."""
        if not isinstance(x, Tensor):
            raise ArgumentError(f"x is {kind_of(x)}; give a tensor {list(self.size)} {self.dtype}")
        if (x.shape, x.dtype, x.device) != (self.size, self.dtype, self.device):
            raise InputError(
                f"this plan is for x {list(self.size)} {self.dtype} on {self.device}, not {list(x.shape)} {x.dtype} on "
                f"{x.device}; make one with bppsa.jacobian_plan(model, x)"
            )
        try:
            return self.run(x)
        except Outdated:
            assert self.again is not None
            return self.again(x).run(x)


@dataclass(frozen=True, eq=False)
class Coloured:
    """at: x to J^T; pattern: of J; place: int64 [E], where entry e of J stands in the products [C, N]; seeds [C, M]."""

    at: Callable[[Tensor], TransposedJacobian]
    pattern: Pattern
    place: Tensor
    seeds: Tensor

    @classmethod
    def of(cls, at: Callable[[Tensor], TransposedJacobian], colouring: Colouring, x: Tensor) -> Coloured:
        jt = colouring.pattern
        pattern, rows = transposed(jt, jt.rows)
        place = colouring.colour[pattern.rows] * jt.shape[0] + rows
        return cls(at, pattern, place.to(x.device), colouring.seeds(x))

    def __call__(self, x: Tensor) -> Tensor:
        jt = self.at(x)
        products = torch.cat([product(jt, seeds, len(x)) for seeds in self.seeds.split(together(jt))], -2)
        values = products.flatten(-2).index_select(-1, self.place)
        return self.pattern.csr(values)


@dataclass(frozen=True, eq=False)
class ByProducts:
    """at: x to J^T; pattern: of J; place: int64 [E], where entry e of J stands among those of J^T."""

    at: Callable[[Tensor], TransposedJacobian]
    multiplied: Multiplied
    pattern: Pattern
    place: Tensor

    @classmethod
    def of(cls, at: Callable[[Tensor], TransposedJacobian], multiplied: Multiplied, x: Tensor) -> ByProducts:
        jt = multiplied.pattern
        pattern, place = transposed(jt, torch.arange(jt.nnz))
        return cls(at, multiplied, pattern, place.to(x.device))

    def __call__(self, x: Tensor) -> Tensor:
        jt = self.at(x)
        assert isinstance(jt, Network)
        values = self.multiplied.entries(jt).index_select(-1, self.place)
        return self.pattern.csr(values if len(x) == 1 or values.dim() == 2 else values.repeat(len(x), 1))


def coloured_ns(jt: TransposedJacobian, colours: int) -> float:
    """What a call by colours takes, predicted."""
    ops = [factor for link in jt.links for factor in link.factors] if isinstance(jt, Network) else [jt]
    calls = -(-colours // together(jt))
    return sum(colours * jt.held * NS_A_MULTIPLICATION * op.nnz + calls * NS_A_CALL for op in ops)


def together(jt: TransposedJacobian) -> int:
    """How many seeds to multiply at once."""
    links = jt.links if isinstance(jt, Network) else ()
    widest = max((max(factor.shape) for link in links for factor in link.factors), default=1)
    return max(1, SLICE // (widest * jt.held))


def product(jt: TransposedJacobian, seeds: Tensor, rows: int) -> Tensor:
    """J^T times seeds [C, M]: [C, N] where there is one row, else [B, C, N]."""
    seeds = seeds.view(-1, *jt.out_size)
    if jt.held == 1:
        products = flat(jt.mv(seeds))
        return products if rows == 1 else products.expand(rows, *products.shape)
    return flat(torch.vmap(lambda seed: jt.mv(seed.expand(rows, *jt.out_size)), out_dims=1)(seeds), 2)


def by_rows(model: Callable[[Tensor], Tensor], budget: int) -> Callable[[Tensor], Tensor]:
    """J one row at a time, by PyTorch's autograd; of a sample, with the others held where they are."""

    def run(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = called(model, x)
        if not isinstance(y, Tensor) or y.shape[:1] != x.shape[:1]:
            raise InputError(f"the model must map x [B, *n] to one tensor [B, *m]; {list(x.shape)} became {shape(y)}")
        m, n = y[0].numel(), x[0].numel()
        if (needed := len(x) * m * n * (x.itemsize + 8)) > budget:
            what = f"J is {m} x {n} with {m * n} non-zeros, for {len(x)} rows {needed >> 20} MB against {budget >> 20}"
            raise BudgetError(str(Reason(what, mend="raise budget, or take fewer or smaller inputs")))
        rows = [gradient(element, x)[b] for b, row in enumerate(flat(y)) for element in row]
        values = torch.stack(rows).view(len(x), m * n)
        return Pattern.dense(m, n).csr(values[0] if len(x) == 1 else values)

    return run


def gradient(y: Tensor, x: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(y, x, retain_graph=True, allow_unused=True, materialize_grads=True)
    return found


def called(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The model's output; its buffers stay as they are."""
    if not isinstance(model, nn.Module):
        return model(x)
    return torch.func.functional_call(model, {name: buffer.clone() for name, buffer in model.named_buffers()}, (x,))


def shape(y: object) -> str:
    return str(list(y.shape)) if isinstance(y, Tensor) else type(y).__name__
