"""The cells of a page: each block of code under a heading of its own, with the arguments of its call of bppsa.scan."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bppsa.runtime.recurrent.reference import loop

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "literature.md"
SHARED = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)  # the page's first block
CELLS = re.compile(r"^### ([^\n]+)\n(?:(?!#|```)[^\n]*\n)*```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Shown(NamedTuple):
    """A cell and what it is scanned over. inputs: whatever gets a gradient."""

    cell: Callable[[Any, Any], tuple[Any, Any]]
    carry: Any
    xs: Any
    inputs: list[Tensor]


class Reached(Exception):
    """The call of bppsa.scan."""


def names(page: Path = PAGE) -> list[str]:
    return [found[1] for found in CELLS.finditer(page.read_text())]


def read(name: str, page: Path = PAGE, **sizes: int) -> Shown:
    """Return the cell under the heading `name`; `sizes` stand for those that the page's first block sets.

    Tensors that were computed before the scan are its inputs, as they would be of a loop.
    """
    text, known = page.read_text(), {}
    run(SHARED.search(text), 1, page, known)
    assert sizes.keys() <= known.keys(), sizes
    shared = {**known, **sizes, "bppsa": SimpleNamespace(scan=reached)}
    known.update(shared)
    try:
        run(next(found for found in CELLS.finditer(text) if found[1] == name), 2, page, known)
    except Reached as call:
        cell, carry, xs = call.args
    made = {key: value for key, value in known.items() if key not in shared}
    known.update({key: fresh(value) for key, value in made.items() if isinstance(value, Tensor) and value.grad_fn})
    carry, xs = (pytree.tree_map_only(Tensor, fresh, given) for given in (carry, xs))
    modules = [value for value in made.values() if isinstance(value, nn.Module)]
    tensors = [known[key] for key in made if isinstance(known[key], Tensor)]
    held = [*(p for module in modules for p in module.parameters()), *tensors, *pytree.tree_leaves((carry, xs))]
    return Shown(cell, carry, xs, read_by(cell, carry, xs, [t for t in held if t.requires_grad]))


def run(block: re.Match[str] | None, group: int, page: Path, known: dict[str, Any]) -> None:
    """Run a block of the page, whose lines are those of the page in reports."""
    assert block is not None
    above = block.string.count("\n", 0, block.start(group))
    exec(compile("\n" * above + block[group], str(page), "exec"), known)


def reached(*call: Any) -> Any:
    raise Reached(*call)


def fresh(value: Tensor) -> Tensor:
    """The same numbers as an input of the scan's."""
    return value.detach().clone().requires_grad_(value.is_floating_point())


def read_by(cell: Callable[..., Any], carry: Any, xs: Any, tensors: list[Tensor]) -> list[Tensor]:
    """Those of `tensors` that a loop has gradients for, each once."""
    tensors = list({id(t): t for t in tensors}.values())
    outputs = [leaf for leaf in pytree.tree_leaves(loop(cell, carry, xs)) if leaf.requires_grad]
    gradients = torch.autograd.grad(sum(o.sum() for o in outputs), tensors, allow_unused=True)
    return [t for t, gradient in zip(tensors, gradients, strict=True) if gradient is not None]
