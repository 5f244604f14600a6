"""Random cells over complex and real values, against a plain loop in complex128."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from tests.breadth import examples
from tests.scan.grammar import Program, programs
from tests.scan.support import check, check_inference
from tests.scan.zoo import Example, random

C = torch.complex128


def bounded(a: Tensor) -> Tensor:
    """Below one, where no function here has a pole."""
    return a / (1 + a.abs())


UNARY: list[Callable[[Tensor], Tensor]] = [
    lambda a: a.conj(),
    lambda a: a.mH.mT,
    lambda a: a.real,
    lambda a: a.conj().imag,
    lambda a: 1j * a.imag,
    lambda a: torch.complex(a.imag, a.real),
    lambda a: torch.view_as_complex(torch.view_as_real(a).flip(-1)),
    lambda a: torch.view_as_real(a).sum(-1),
    lambda a: torch.polar(a.abs(), a.real),
    lambda a: a.abs(),
    lambda a: torch.tanh(bounded(a)),
    lambda a: torch.exp(bounded(a)),
    lambda a: torch.exp(1j * a.real) * 0.5,
    lambda a: torch.sqrt(2 + bounded(a)),
    lambda a: torch.log(2 + bounded(a)),
    lambda a: torch.sin(bounded(a)) * (1 - 2j),
    lambda a: a.sgn(),
    lambda a: a.angle(),
    lambda a: -(bounded(a) ** 2) - 0.5j,
    lambda a: (2 + bounded(a)).reciprocal(),
    lambda a: a[:, :1],
    lambda a: a[:, a.shape[1] // 2 :],
    lambda a: torch.cat(a.chunk(2, 1)[::-1], 1),
    lambda a: torch.stack(a.unbind(1)[::-1], 1),
    lambda a: a.mean(1, keepdim=True),
    lambda a: a.sum(1).unsqueeze(1),
    lambda a: a.cumsum(1) / 4,
    lambda a: torch.zeros_like(a).add_(a).mul_(0.9),
    lambda a: a.detach() * 0.5j,
    lambda a: a / (1 + a.norm(dim=1, keepdim=True)),
    lambda a: torch.einsum("bi,bj->b", a, a.conj()).unsqueeze(1) / 4,
    lambda a: (a.unsqueeze(2) * bounded(a).unsqueeze(1)).sum(2),
]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add,
    torch.sub,
    torch.mul,
    lambda a, b: a * b.conj(),
    lambda a, b: a / (3 + bounded(b)),
    lambda a, b: 1j * a - b.real,
    lambda a, b: torch.where(a.real > b.real, a, 0.3 * b + 0j),
    lambda a, b: a.masked_fill(b.real > 0, 0.25j),
    lambda a, b: torch.complex(a.real, b.real),
    lambda a, b: torch.lerp(a, b + 0j, 0.25),
]


class Cell:
    """A program as a cell. Parameters are made by the first call; some are real."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.parameters: dict[str, Tensor] = {}

    def parameter(self, name: str, *shape: int, real: bool = False) -> Tensor:
        if name not in self.parameters:
            dtype = torch.float64 if real else C
            self.parameters[name] = torch.randn(shape, dtype=dtype).mul_(0.7).requires_grad_()
        return self.parameters[name]

    def __call__(self, carry: Sequence[Tensor], x: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        values = [*carry, *x]
        for i, step in enumerate(self.program.steps):
            left, right = values[-1 - step.left % len(values)], values[-1 - step.right % len(values)]
            values.append(getattr(self, step.kind)(f"step{i}", step.which, left, right))
        nexts = [
            self.fitted(f"next{i}", values[-1 - at % len(values)], old)
            for i, (at, old) in enumerate(zip(self.program.nexts, carry, strict=False))
        ]
        return nexts, [values[-1 - at % len(values)] for at in self.program.outputs]

    def fitted(self, name: str, value: Tensor, old: Tensor) -> Tensor:
        """A carry stays bounded, and keeps its width and dtype."""
        if value.shape[1] != old.shape[1]:
            value = self.product(value, self.parameter(name, value.shape[1], old.shape[1]))
        value = bounded(value)
        return value.to(C) if old.is_complex() else value.real

    def product(self, left: Tensor, weight: Tensor) -> Tensor:
        return left.to(C) @ weight.to(C)

    def unary(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        return UNARY[which % len(UNARY)](left.to(C))

    def binary(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        if 1 not in (left.shape[1], right.shape[1]) and left.shape != right.shape:
            right = self.product(right, self.parameter(name, right.shape[1], left.shape[1]))
        return BINARY[which % len(BINARY)](left.to(C), right)

    def matmul(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        width = 1 + which % 5
        if which % 2:
            weight, bias = self.parameter(name, width, left.shape[1]), self.parameter(name + "b", width)
            return functional.linear(left.to(C), weight.conj(), bias)
        return self.product(left, self.parameter(name, left.shape[1], width, real=which % 4 == 0))

    def join(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        both = torch.cat([left, right], 1)
        return both if which % 2 else self.product(both, self.parameter(name, both.shape[1], 3))

    def norm(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        """Root mean square, with a length for each column."""
        size = torch.sqrt(left.abs().square().mean(1, keepdim=True) + 0.1)
        return left / size * self.parameter(name, left.shape[1], real=which % 2 == 0)

    def vector(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        shape = [(left.shape[1],), (), (1, left.shape[1])][which % 3]
        return left * torch.exp(1j * self.parameter(name, *shape, real=True)) + self.parameter(name + "b", *shape)

    def frozen(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        with torch.no_grad():
            gate = torch.sigmoid(left.real) * (1 - 1j)
        return gate * left


@examples(60)
@given(
    program=programs,
    steps=st.integers(1, 3),
    rows=st.integers(1, 5),
    real=st.lists(st.booleans(), min_size=4, max_size=4),
    reverse=st.booleans(),
    seed=st.integers(0, 3),
)
def test_a_random_cell_equals_its_loop(
    program: Program, steps: int, rows: int, real: list[bool], reverse: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    cell = Cell(program)
    kinds: list[Any] = [torch.float64 if one else C for one in real]
    carry = [random(rows, width, dtype=kind) for width, kind in zip(program.carries, kinds, strict=False)]
    xs = [random(steps, rows, width, dtype=kind) for width, kind in zip(program.xs, kinds[2:], strict=False)]
    cell(carry, [x[0] for x in xs])  # makes the parameters
    example = Example(cell, carry, xs, list(cell.parameters.values()))
    decision = check(example, reverse=reverse, tolerance=1e-9, absent=True)
    check_inference(example, reverse=reverse)
    assert decision.strategy == "sequential" or "interleaving" in decision.reason, decision.reason
