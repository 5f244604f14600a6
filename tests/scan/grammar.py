"""Random cells: a program is a list of instructions, each of which takes earlier values and gives a new one [B, n].

Instructions name their operands by numbers that are taken modulo what there is, so every list of numbers is a program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

UNARY: list[Callable[[Tensor], Tensor]] = [
    torch.tanh,
    torch.sigmoid,
    torch.relu,
    torch.neg,
    torch.abs,
    functional.silu,
    functional.elu,
    functional.softplus,
    functional.leaky_relu,
    functional.gelu,
    functional.mish,
    lambda a: functional.gelu(a, approximate="tanh"),
    lambda a: torch.clamp(a, -0.7, 0.6),
    lambda a: torch.exp(torch.tanh(a)),
    lambda a: torch.sqrt(1 + a * a),
    lambda a: torch.log1p(a * a),
    lambda a: 1 - a,
    lambda a: 0.5 * a**3,
    lambda a: a.detach() * 0.5,
    lambda a: a[:, :1],
    lambda a: a[:, a.shape[1] // 2 :],
    lambda a: torch.cat(a.chunk(2, 1)[::-1], 1),
    lambda a: a.mean(1, keepdim=True),
    lambda a: a.sum(1).unsqueeze(1),
    lambda a: (a > 0.1).to(a.dtype),
    lambda a: torch.zeros_like(a).add_(a).mul_(0.9),
]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add,
    torch.sub,
    torch.mul,
    lambda a, b: a / (1 + b * b),
    torch.maximum,
    torch.minimum,
    lambda a, b: torch.where(a > b, a, 0.3 * b),
    lambda a, b: torch.where((a < 0.5) | ~(b <= a), b, 0.0),
    lambda a, b: a.masked_fill(b > 0, 0.25),
    lambda a, b: torch.lerp(a, b, torch.sigmoid(a)),
    lambda a, b: torch.addcmul(a, b, b, value=0.5),
]


class Step(NamedTuple):
    kind: str
    which: int
    left: int
    right: int


class Program(NamedTuple):
    """`weights[i]` widens or narrows; carries and outputs name values. Values begin with the carries and the xs."""

    steps: tuple[Step, ...]
    carries: tuple[int, ...]  # widths
    xs: tuple[int, ...]
    nexts: tuple[int, ...]
    outputs: tuple[int, ...]


number = st.integers(0, 99)
kinds = st.sampled_from(["unary", "unary", "binary", "binary", "matmul", "join", "norm", "vector", "frozen"])
widths = st.integers(1, 5)
programs = st.builds(
    Program,
    st.lists(st.builds(Step, kinds, number, number, number), min_size=1, max_size=9).map(tuple),
    st.lists(widths, min_size=1, max_size=2).map(tuple),
    st.lists(widths, min_size=1, max_size=2).map(tuple),
    st.lists(number, min_size=2, max_size=2).map(tuple),
    st.lists(number, min_size=1, max_size=3).map(tuple),
)


class Cell:
    """A program as a cell. Parameters are made by the first call, each of the size that it is needed in."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.parameters: dict[str, Tensor] = {}

    def parameter(self, name: str, *shape: int) -> Tensor:
        if name not in self.parameters:
            self.parameters[name] = torch.randn(shape, dtype=torch.float64).mul_(0.7).requires_grad_()
        return self.parameters[name]

    def __call__(self, carry: Sequence[Tensor], x: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        values = [*carry, *x]
        for i, step in enumerate(self.program.steps):
            left, right = values[-1 - step.left % len(values)], values[-1 - step.right % len(values)]
            values.append(getattr(self, step.kind)(f"step{i}", step.which, left, right))
        nexts = [
            self.fitted(f"next{i}", values[-1 - at % len(values)], old.shape[1])
            for i, (at, old) in enumerate(zip(self.program.nexts, carry, strict=False))
        ]
        return nexts, [values[-1 - at % len(values)] for at in self.program.outputs]

    def fitted(self, name: str, value: Tensor, width: int) -> Tensor:
        """A carry stays bounded, and keeps its width."""
        return torch.tanh(value if value.shape[1] == width else value @ self.parameter(name, value.shape[1], width))

    def unary(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        return UNARY[which % len(UNARY)](left)

    def binary(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        if 1 not in (left.shape[1], right.shape[1]) and left.shape != right.shape:
            right = right @ self.parameter(name, right.shape[1], left.shape[1])
        return BINARY[which % len(BINARY)](left, right)

    def matmul(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        width = 1 + which % 5
        if which % 2:
            weight, bias = self.parameter(name, width, left.shape[1]), self.parameter(name + "b", width)
            return functional.linear(left, weight, bias)
        return left @ self.parameter(name, left.shape[1], width)

    def join(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        both = torch.cat([left, right], 1)
        return both if which % 2 else both @ self.parameter(name, both.shape[1], 3)

    def norm(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        if left.shape[1] < 2:  # of one number there is nothing to normalise
            return left
        shape = left.shape[1:]
        weight, bias = (self.parameter(name, *shape), self.parameter(name + "b", *shape)) if which % 2 else (None, None)
        return functional.layer_norm(left, shape, weight, bias, eps=0.1)

    def vector(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        shape = [(left.shape[1],), (), (1, left.shape[1])][which % 3]
        return left * self.parameter(name, *shape) + self.parameter(name + "b", *shape)

    def frozen(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        with torch.no_grad():
            gate = torch.sigmoid(left)
        return gate * left
