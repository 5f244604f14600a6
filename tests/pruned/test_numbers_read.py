"""Numbers that a forward reads from tensors of its own, which change between calls while the graph stays one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.pruned.support import error, kernels, pruned

FEATURES = 512  # that a region of one layer gains


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.register_buffer("step", torch.tensor(1))
        self.register_buffer("steps", torch.tensor([1, 2]))
        self.kept, self.numpys = torch.tensor(1), np.int64(1)

    def change(self, call: int) -> None:
        for tensor in (self.step, self.steps, self.kept):
            tensor.fill_(call)
        self.numpys = np.int64(call)

    def forward(self, x: Tensor) -> Any:
        return self.second(torch.relu(self.first(x)) * self.number())

    def number(self) -> Any:
        return int(self.step)


class OfAttribute(Reads):
    def number(self) -> Any:
        return self.kept.item()


class OfNumpy(Reads):
    def number(self) -> Any:
        return int(self.numpys)


class OfVector(Reads):
    def number(self) -> Any:
        return self.steps.tolist()[1]


class Computed(Reads):
    def number(self) -> Any:
        n = int(self.step)
        return 1 / (n * n + 1)


class Compared(Reads):
    def number(self) -> Any:
        return bool(self.step > 2)


class Branches(Reads):
    def number(self) -> Any:
        return 3 if self.step.item() > 2 else 1


class OfRows(Reads):
    """The size of what PyTorch computes follows from the number."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        some = x.view(-1, 8, 8, 8)[: int(self.step) + 2].unsqueeze(0)
        return self.second(h * some.shape[1])


class OfParts(Reads):
    """What PyTorch gives as a tuple, and a region's nodes take apart."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        a, b = x.cos().chunk(2, dim=1)
        y = self.second(torch.relu(self.first(x)))
        return y, a.sum(), b


CASES = (Reads, OfAttribute, OfNumpy, OfVector, Computed, Compared, Branches, OfRows, OfParts)


def pair(case: type[Reads]) -> tuple[Reads, Reads]:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(pruned(case().double(), 0.97))
    return made[0], bppsa.compile(made[1])  # type: ignore[return-value]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_number_read_from_a_tensor_is_that_of_the_call(case: type[Reads]) -> None:
    plain, fast = pair(case)
    for call in (1, 2, 3, 4, 2):
        plain.change(call), fast.change(call)
        x, results = torch.randn(64, FEATURES).double(), []
        for model in (plain, fast):
            model.zero_grad()
            y = model(x)
            outputs = y if isinstance(y, tuple) else (y,)
            outputs[0].square().mean().backward()
            results.append([*outputs, *(p.grad for p in model.parameters())])
        for expected, got in zip(*results, strict=True):
            assert error(expected, got) < 1e-10
    assert "sparse" in kernels(fast)


def test_a_number_read_in_each_call_is_told_and_needs_no_plan_for_each() -> None:
    plain, fast = pair(Reads)
    for call in range(1, 40):
        plain.change(call), fast.change(call)
        x = torch.randn(64, FEATURES).double()
        assert error(plain(x), fast(x)) < 1e-10
    decided = {d.path: d for d in fast.report.decisions}
    assert decided["first"].strategy == "sparse"
    assert "a number that each call brings" in decided["first"].reason
