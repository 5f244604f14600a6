"""The recurrences whose Triton kernels are tested and compiled ahead of time, by the width H of their state."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bppsa import cells
from bppsa.codegen.assembling import program
from bppsa.codegen.assembling.program import Program
from bppsa.common.chain import Recurrence
from bppsa.frontend.cell.plans import find
from bppsa.frontend.planning import sweeps
from bppsa.fxpasses.network import jacobian
from tests.fxpasses.graphs import split_cell
from tests.scan.matrices import Make, Sizes, gated_linear_attention, retnet
from tests.scan.zoo import Example

INPUTS, ROWS = 3, 2


def module(mode: str, *, projected: bool = False) -> Callable[[int], Recurrence]:
    return lambda H: sweeps.module_recurrence(mode, INPUTS, H, (H + 1) // 2 if projected else 0, True)


def scanned(make: type[cells.Cell], *, resets: bool = False) -> Callable[[int], Recurrence]:
    def recurrence(H: int) -> Recurrence:
        cell = make(INPUTS, H)  # type: ignore[call-arg]  the shapes of all these cells are alike
        x = torch.zeros(1, ROWS, INPUTS)
        xs = (x, torch.zeros(1, ROWS, dtype=torch.bool)) if resets else x
        return split_cell(Example(cell, cell.initial(ROWS), xs, list(cell.parameters())))

    return recurrence


def two_halves(H: int) -> Recurrence:
    """A carry put together of two stretches and read in others."""
    w, u = torch.randn(INPUTS, H), torch.randn(H, H)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        new = torch.tanh(x @ w + h @ u)
        h = torch.cat([new[:, H // 3 :], h[:, : H // 3]], 1) if H >= 3 else new
        return h, h * h

    return split_cell(Example(cell, torch.zeros(ROWS, H), torch.zeros(1, ROWS, INPUTS), [w, u]))


def linear(H: int) -> Recurrence:
    """J^T is the weight, whatever the state is."""
    weight = torch.zeros(H, H, requires_grad=True)
    zeros = torch.zeros(ROWS, H)
    return split_cell(Example(lambda h, x: (h @ weight + x,) * 2, zeros, zeros.unsqueeze(0), [weight]))


def points_and_folds(H: int) -> Recurrence:
    """Every function of the printer that no other model has."""
    w = torch.randn(INPUTS, H)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        angle = torch.sin(h) + torch.cos(h) * torch.atan(h) + torch.fmod(h, 0.7) - torch.floor(h).detach()
        h = torch.softmax(angle + x @ w, 1) + torch.logsumexp(h, 1, keepdim=True) - h.amax(1, keepdim=True)
        return torch.tanh(h), h

    return split_cell(Example(cell, torch.zeros(ROWS, H), torch.zeros(1, ROWS, INPUTS), [w]))


MODELS: dict[str, Callable[[int], Recurrence]] = {
    "RNN": module("RNN_TANH"),
    "GRU": module("GRU"),
    "LSTM": module("LSTM"),
    "LSTM, projected": module("LSTM", projected=True),
    "ResetGRU": scanned(cells.ResetGRU, resets=True),
    "LayerNormLSTM": scanned(cells.LayerNormLSTM),
    "MinGRU": scanned(cells.MinGRU),
    "IndRNN": scanned(cells.IndRNN),
    "two halves": two_halves,
    "linear": linear,
    "points and folds": points_and_folds,
}

HEADS = 4


def with_heads(make: Callable[[int], cells.Cell]) -> Callable[[int], Recurrence]:
    """make: takes the width of a head; so many inputs, too, as all heads have together."""

    def recurrence(D: int) -> Recurrence:
        cell = make(D)
        return as_scanned(Example(cell, cell.initial(ROWS), torch.zeros(1, ROWS, HEADS * D), []))

    return recurrence


def of_matrices(make: Make) -> Callable[[int], Recurrence]:
    return lambda D: as_scanned(make(Sizes(ROWS, HEADS, D, D)))


def as_scanned(given: Example) -> Recurrence:
    """Spelled for kernels, as a scan has it."""
    found = find(given.cell, *pytree.tree_flatten(given.carry), *pytree.tree_flatten(given.xs))
    assert isinstance(found, tuple), found
    return found[0].recurrence


# Of several axes, by the width D of each of four heads; a head's state is D numbers or D x D.
WITH_HEADS: dict[str, Callable[[int], Recurrence]] = {
    "sLSTM": with_heads(lambda D: cells.sLSTM(HEADS * D, HEADS * D, HEADS)),
    "mLSTM": with_heads(lambda D: cells.mLSTM(HEADS * D, HEADS * D, HEADS)),
    "MambaStep": with_heads(lambda D: cells.MambaStep(HEADS * D, 16)),
    "DeltaNet": with_heads(lambda D: cells.DeltaNet(HEADS * D, HEADS * D, HEADS)),
    "RetNet": of_matrices(retnet),
    "GLA": of_matrices(gated_linear_attention),
}


@functools.lru_cache
def built(model: str, H: int, inline: bool = False) -> Program:
    recurrence = (MODELS | WITH_HEADS)[model](H)
    return program.build(recurrence, jacobian.transpose(recurrence), inline=inline)
