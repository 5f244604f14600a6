"""A model with a forward of the test's, trained by a schedule beside the same micro-batches in a row."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import bppsa
from bppsa.errors import BppsaError
from bppsa.schedule import Recipe, zero_bubble
from tests.models.case import of_all
from tests.workers import support

WIDTH, ROWS = 4, 6


class Model(nn.Module):
    """Two layers around a function of the test's: function(model, activation) -> activation."""

    def __init__(self, function: Callable[[Any, Tensor], Any] = lambda self, x: x) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.third(torch.tanh(self.second(self.function(self, self.first(x)))))


@dataclass(frozen=True)
class Batch:
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return next(len(x) for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, Tensor))

    @property
    def target(self) -> Tensor:
        return torch.linspace(-1, 1, self.rows)


def batch(rows: int = ROWS, *shape: int) -> Batch:
    return Batch((torch.randn(rows, *(shape or (WIDTH,))),))


def compiled_for(
    model: nn.Module,
    example: Batch,
    schedule: Recipe | None = None,
    stages: int = 2,
    microbatches: int = 2,
    loss_fn: Callable[..., Tensor] | None = of_all,
) -> Any:
    """Cut at once, for the example."""
    return bppsa.compile(
        model,
        schedule=schedule or zero_bubble(),
        stages=stages,
        microbatches=microbatches,
        loss_fn=loss_fn,
        example_inputs=example.args,
        **({"example_kwargs": example.kwargs} if example.kwargs else {}),
    )


def serial(model: nn.Module, given: Batch, microbatches: int = 2) -> Tensor:
    """The loss of a loop over micro-batches, which leaves gradients in `.grad`."""

    def part(x: Any, b: int) -> Any:
        return x.tensor_split(microbatches)[b] if isinstance(x, Tensor) and x.dim() and len(x) == given.rows else x

    total = torch.zeros(())
    for b in range(microbatches):
        rows = part(given.target, b)
        if len(rows):
            args, kwargs = tree_map(lambda x, b=b: part(x, b), (given.args, dict(given.kwargs)))
            loss = of_all(model(*args, **kwargs), rows) * (len(rows) / given.rows)
            loss.backward()
            total = total + loss.detach()
    return total


def check_step(compiled: nn.Module, model: nn.Module, given: Batch, microbatches: int = 2) -> None:
    """Loss, gradients and buffers of a step are those of the model, and both are updated."""
    loss = bppsa.trainer(compiled).step(*given.args, given.target, **given.kwargs)
    support.close(loss, serial(model, given, microbatches))
    support.same(support.gradients(compiled), support.gradients(model))
    support.close(dict(compiled.named_buffers()), dict(model.named_buffers()))
    for trained in (compiled, model):
        torch.optim.SGD(trained.parameters(), lr=0.1).step()
        trained.zero_grad()


def check(
    model: nn.Module,
    *batches: Batch,
    schedule: Recipe | None = None,
    stages: int = 2,
    change: Callable[[Any], object] = lambda model: None,
) -> Any:
    """Steps on the batches, the first of which is the example; two where there is one. change: is made to the model and
    to what is compiled, for what a copy does not take along."""
    first, *others = batches or (batch(),)
    clone = copy.deepcopy(model)
    change(model), change(clone)
    compiled = compiled_for(clone, first, schedule, stages)
    for given in (first, *(others or (first,))):
        check_step(compiled, model, given)
    return compiled


def check_or_refused(model: nn.Module, said: str, *batches: Batch, **options: Any) -> None:
    """Steps that are the model's, or an error of ours that says this. options: as `check` has them."""
    error = error_of(model, *batches, **options)
    assert error is None or re.search(said, str(error), re.DOTALL), str(error)


def error_of(model: nn.Module, *batches: Batch, **options: Any) -> BppsaError | None:
    """Of steps that are the model's where there is none."""
    try:
        check(model, *batches, **options)
    except BppsaError as error:
        return error
    return None


def error_of_step(compiled: nn.Module, model: nn.Module, given: Batch) -> BppsaError | None:
    """The same of one step more."""
    try:
        check_step(compiled, model, given)
    except BppsaError as error:
        return error
    return None


def refused(model: nn.Module, said: str, *batches: Batch) -> BppsaError:
    """The error that says this, before or in the first steps; the model is as it was."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(BppsaError, match=re.compile(said, re.DOTALL)) as error:
        check(model, *batches)
    support.close(dict(model.state_dict()), before)
    return error.value


def place(function: Callable[..., Any], text: str) -> str:
    """A pattern of file, line and text of the first line of the function's that holds the text."""
    lines, start = inspect.getsourcelines(function)
    found = next((i, line.strip()) for i, line in enumerate(lines) if text in line)
    return rf"{re.escape(Path(inspect.getfile(function)).name)}:{start + found[0]}:?\s*{re.escape(found[1])}"
