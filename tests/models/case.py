"""What a model of the table is: how it is made, what it is called with, and the loss that it is trained by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

CLASSES, WORDS, STEPS = 5, 31, 7
Call = tuple[tuple[Any, ...], dict[str, Any]]  # positional arguments, and those by keyword
Inputs = Callable[[int, Generator], Call]  # of so many rows
Targets = Callable[[int, Generator], Any]


def of_class(output: Any, target: Tensor) -> Tensor:
    """Of what a model returns, or of its field `logits`. target: [B]."""
    return F.cross_entropy(getattr(output, "logits", output), target)


def of_words(output: Any, target: Tensor) -> Tensor:
    """A class for each word. target: [B, T]."""
    return F.cross_entropy(getattr(output, "logits", output).flatten(0, 1), target.flatten())


def of_all(output: Any, target: Tensor) -> Tensor:
    """A mean over rows that touches every output. target: [B]."""
    found = [x.flatten(1) for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]
    return sum(((x - target[:, None] * (i + 1)) ** 2).mean() for i, x in enumerate(found))


def classes(rows: int, g: Generator) -> Tensor:
    return torch.randint(CLASSES, (rows,), generator=g)


def words(rows: int, g: Generator, steps: int = STEPS) -> Tensor:
    """None of which is word 0, that many models pad with, or word 1 or 2, that some end a text with."""
    return torch.randint(3, WORDS, (rows, steps), generator=g)


def reals(*shape: int) -> Callable[[int, Generator], Tensor]:
    return lambda rows, g: torch.randn(rows, *shape, dtype=torch.float64, generator=g)


def images(size: int = 32) -> Inputs:
    return lambda rows, g: ((reals(3, size, size)(rows, g),), {})


def text(rows: int, g: Generator) -> Call:
    return (words(rows, g),), {}


def padded(rows: int, g: Generator) -> Call:
    """Rows of different lengths, the first of them whole."""
    lengths = torch.randint(2, STEPS + 1, (rows,), generator=g)
    lengths[0] = STEPS
    mask = (torch.arange(STEPS) < lengths[:, None]).long()
    return (), {"input_ids": words(rows, g) * mask, "attention_mask": mask}


@dataclass(frozen=True)
class Case:
    """make: a model whose drop probabilities are all 0. target: None where the model returns its loss, and loss_fn is
    None. dtype: float64, unless the model has code that takes nothing but float32. needs: the package that it is of.
    stages: how many it is cut into."""

    make: Callable[[], nn.Module]
    inputs: Inputs
    target: Targets | None
    loss_fn: Callable[[Any, Any], Tensor] | None
    dtype: torch.dtype = torch.float64
    needs: str = "torch"
    stages: int = 4

    def model(self) -> nn.Module:
        """The same weights each time, none of which is zero or so small that what it does is lost in rounding."""
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            made = self.make().to(self.dtype).train()
            for parameter in made.parameters():
                inputs = parameter[0].numel() if parameter.dim() > 1 else 1
                parameter.add_(torch.randn_like(parameter), alpha=0.2 / inputs**0.5)
            return made

    def batch(self, rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Arguments by position, by keyword, and the target."""
        g = torch.Generator().manual_seed(seed)
        args, kwargs = self.inputs(rows, g)
        target = None if self.target is None else self.target(rows, g)
        return tree_map(self._cast, (args, kwargs, target))

    def _cast(self, leaf: Any) -> Any:
        return leaf.to(self.dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


Cases = Mapping[str, Case]
