"""What a step of a scheduled model has to equal: the same micro-batches in a row, run by PyTorch."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from tests.models.case import Case
from tests.workers import support

ROWS, MICROBATCHES = 8, 3
TOLERANCES = {torch.float64: support.EXACT, torch.float32: 2e-4}  # relative


def skip_without(case: Case) -> None:
    if importlib.util.find_spec(case.needs) is None:
        pytest.skip(f"{case.needs} is not installed; make test-models installs it")


def part(value: Any, b: int, rows: int = ROWS) -> Any:
    """The b-th micro-batch's part of a pytree of tensors, each of which has the batch's rows."""

    def cut(x: Any) -> Any:
        return x.tensor_split(MICROBATCHES)[b] if isinstance(x, Tensor) and x.dim() and len(x) == rows else x

    return tree_map(cut, value)


def loss_of(case: Case, output: Any, target: Any) -> Tensor:
    """The model's own where there is no other: the output, or its field `loss`."""
    if case.loss_fn is not None:
        return case.loss_fn(output, target)
    if isinstance(output, Tensor):
        return output
    return output["loss"] if isinstance(output, dict) else output.loss


def serial(case: Case, model: nn.Module, args: Any, kwargs: Any, target: Any, rows: int = ROWS) -> Tensor:
    """A loop over micro-batches, whose losses count as they have rows. Leaves gradients in `.grad`."""
    total: Tensor | float = 0.0
    for b in range(MICROBATCHES):
        share = len(torch.arange(rows).tensor_split(MICROBATCHES)[b]) / rows
        if not share:
            continue
        output = model(*part(args, b, rows), **part(kwargs, b, rows))
        loss = loss_of(case, output, part(target, b, rows)) * share
        loss.backward()
        total = total + loss.detach()
    assert isinstance(total, Tensor)
    return total


def check_loss(case: Case, found: Tensor, expected: Tensor) -> None:
    """In the dtype that the model computes it in, which for some is float32 whatever the weights are."""
    rounding = 1e-6 if expected.dtype == torch.float32 else 0.0
    support.close(found, expected, max(TOLERANCES[case.dtype], rounding))


def inputs_of(target: Any, args: Any, case: Case) -> tuple[Any, ...]:
    """The positional arguments of `step`."""
    return (*args, target) if case.loss_fn is not None else tuple(args)


def check_trained(case: Case, found: nn.Module, expected: nn.Module) -> None:
    """Gradients and buffers."""
    tolerance = TOLERANCES[case.dtype]
    support.same(support.gradients(found), support.gradients(expected), tolerance)
    support.close(dict(found.named_buffers()), dict(expected.named_buffers()), tolerance)


def update(model: nn.Module) -> None:
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    model.zero_grad()


def update_both(found: nn.Module, expected: nn.Module) -> None:
    """The next step of both is from the very same weights: a batch norm over the three rows of a micro-batch makes
    a million times as much of what sums in another order differ by."""
    update(found), update(expected)
    expected.load_state_dict(found.state_dict())


def evaluated(case: Case, model: nn.Module, args: Any, kwargs: Any, rows: int = ROWS) -> list[Tensor]:
    """Every tensor that the model returns for the micro-batches in a row, put together."""
    found = [tensors(model(*part(args, b, rows), **part(kwargs, b, rows))) for b in range(MICROBATCHES)]
    return [torch.cat(pieces) for pieces in zip(*found, strict=True)]


def tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
