"""Records a cell, and again under other conditions where it may do something else there."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, combinations
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bppsa.errors import InputError, Unsupported
from bppsa.fxpasses.cell.cell_recorder import CellRecorder
from bppsa.fxpasses.cell.instead import INSTEAD
from bppsa.fxpasses.recording.capture import Recording, do_the_same, record
from bppsa.fxpasses.recording.recorder import ASKS, DRAW_OUTSIDE

NO_HOOKS = "saved tensor hooks"  # torch.func's error names them where it meets some
MOST_ASKED = 4  # the most tensors that a cell may be given which asks for their gradients: each choice is a run


def recorded(
    flat_cell: Callable[..., Any], args: Sequence[Any], gradients: bool, otherwise: frozenset[int]
) -> tuple[Recording, CellRecorder]:
    """Returns the recording of a cell, and its recorder. Derivatives of torch.func refuse saved-tensor hooks: a cell
    that takes some is run a second time, without them. A cell that asks whether a tensor has a gradient has to do the
    same where there is none, as the first carry and x may have none: it is run again without each choice of them.
    otherwise: as of `CellRecorder`."""
    given = pytree.tree_leaves(args)

    def by(hooks: bool, without: Container[int] = ()) -> tuple[Recording, CellRecorder]:
        recorder = CellRecorder(1 + len(args[1]), otherwise, hooks, without)
        instead = {**INSTEAD, torch.autograd.grad: recorder.grad}
        with without_pythons_draws():
            return record(flat_cell, args, gradients=gradients, instead=instead, recorder=recorder), recorder

    hooks = True
    try:
        recording, recorder = by(hooks)
    except InputError as error:
        if NO_HOOKS not in str(error.__cause__):
            raise
        recording, recorder = by(hooks := False)
    if recorder.asks:
        others = some_of(range(len(given))) if gradients else ()
        is_odd = not gradients and any(leaf.requires_grad for leaf in args[0])  # in the first step alone
        if is_odd or len(given) > MOST_ASKED or not all(do_the_same(recording, by(hooks, n)[0]) for n in others):
            raise Unsupported(ASKS, op="requires_grad", mend="leave it to autograd, or pass a bool")
    return recording, recorder


@contextmanager
def without_pythons_draws() -> Iterator[None]:
    """Raises `Unsupported` where random numbers of Python's or numpy's are drawn, which a loop draws anew in each step;
    they stand as before then. torch's are ops, which a recording sees."""
    numpy = sys.modules.get("numpy.random")
    before, of_numpy = random.getstate(), numpy and numpy.get_state()
    try:
        yield
    finally:
        drawn = random.getstate() != before or (numpy and repr(numpy.get_state()) != repr(of_numpy))
        random.setstate(before)
        if numpy:
            numpy.set_state(of_numpy)
    if drawn:
        raise Unsupported("draws random numbers", op="random", mend=DRAW_OUTSIDE)


def some_of(numbers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Gives each choice of one or more of the numbers."""
    return chain.from_iterable(combinations(numbers, size) for size in range(1, len(numbers) + 1))
