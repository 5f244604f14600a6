"""Which kernels a wheel holds: their texts, by what they are for.

    BPPSA_ISA=x86-64-v3 python -m wheels.kernels      counts them for a level

Sizes are numbers of a run, not of a text, except that a few classes of widths have texts of their own: every width of
LEAST or more falls into a class that is met here.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch.utils import _pytree as pytree

from bppsa import cells
from bppsa.codegen.assembling import program
from bppsa.codegen.cpu import print_cpp, products, sparse, stretches
from bppsa.codegen.sparse_conv import native, print_conv
from bppsa.codegen.sparse_conv.window import Window
from bppsa.common.chain import Recurrence
from bppsa.frontend.cell.plans import find
from bppsa.frontend.planning.sweeps import apart, module_recurrence
from bppsa.fxpasses.network import jacobian
from bppsa.plan.recompute import steps_between
from bppsa.runtime.recurrent.recompute import state_sizes

LEAST = 8  # the narrowest state of a module
WIDTHS = (*range(LEAST, 129), 256, 512, 1024)
MODES = ("RNN_TANH", "RNN_RELU", "GRU", "LSTM")
REALS = ("float", "double")
PROJECTED = (128, 256, 512, 1024)  # widths of LSTMs with projections to a half and to a quarter
OF_CELLS = (16, 32, 64, 128, 256)
MANY = 1 << 20  # steps and rows of a call that has more states than are kept, whatever its cell


def square(kind: Callable[[int, int], cells.Cell], width: int) -> cells.Cell:
    return kind(width, width)


CELLS: dict[str, Callable[[int], cells.Cell]] = {
    **{
        name: functools.partial(square, getattr(cells, name))
        for name in cells.__all__
        if name not in ("Cell", "State", "MambaStep", "GroupedGRU")
    },
    "MambaStep": cells.MambaStep,
    "GroupedGRU": lambda width: cells.GroupedGRU(width, width, 4),
}
BESIDE = {"CfC": torch.float32, "ResetGRU": torch.bool, "ResetLSTM": torch.bool}  # what a step is given beside x
# Pruned layers: linear ones, and convolutions of networks on images of 32 x 32 with pools or strides between them.
ONE, NEXT = (1, 1), (2, 2)
SIDES = (32, 16, 8, 4, 2)
WINDOWS = (
    Window(ONE, ONE),
    *(Window((side, side), (3, 3), stride, ONE) for side in SIDES for stride in (ONE, NEXT)),
    *(Window((side, side), (3, 3), ONE, ONE, pool=2) for side in SIDES),
    *(Window((side, side), ONE, stride) for side in SIDES for stride in (ONE, NEXT)),
)


def texts() -> Iterator[tuple[str, str]]:
    """(what it is for, C++ text), each text once."""
    known: set[str] = set()
    for family, text in itertools.chain(modules(), ready_cells(), engines(), pruned()):
        if text not in known:
            known.add(text)
            yield family, text


def modules() -> Iterator[tuple[str, str]]:
    """Of nn.RNN, nn.GRU and nn.LSTM: float32 and float64; GRUs and LSTMs without biases, and with projections,
    float32: with all of them the wheel would be too large."""
    for mode, inline, width in itertools.product(MODES, (False, True), WIDTHS):
        yield from of_module(mode, width, 0, True, inline, REALS)
        if mode in ("GRU", "LSTM"):
            yield from of_module(mode, width, 0, False, inline, REALS[:1])
    for inline, width, part in itertools.product((False, True), PROJECTED, (2, 4)):
        yield from of_module("LSTM", width, width // part, True, inline, REALS[:1])


def of_module(
    mode: str, width: int, projection: int, bias: bool, inline: bool, reals: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    recurrence = module_recurrence(mode, width, width, projection, bias)
    name = f"nn.{mode}{' with a projection' * bool(projection)}{' without biases' * (not bias)}"
    for real in reals:
        for text in of_recurrence(recurrence, inline, real):
            yield f"{name}, {real}", text


def of_recurrence(recurrence: Recurrence, inline: bool, real: str) -> Iterator[str]:
    """Forward, inference and backward; and where a long call keeps only some of its states, what computes the others
    again."""
    with apart():
        lowered = program.build(recurrence, jacobian.transpose(recurrence), inline=inline)
    again = steps_between(state_sizes(lowered, print_cpp.BYTES[real]), MANY, MANY) is not None
    for kernel in (lowered.forward, lowered.inference, lowered.backward, *(lowered.recomputing if again else ())):
        yield print_cpp.source(kernel, real)


def ready_cells() -> Iterator[tuple[str, str]]:
    """Of `bppsa.cells`, float32: as a scan plans them, with gradients and without."""
    for (name, make), width, training in itertools.product(CELLS.items(), OF_CELLS, (True, False)):
        cell = make(width)
        with torch.set_grad_enabled(training):
            plan = planned(cell, width, BESIDE.get(name))
        for inline in (False, True):
            for text in of_recurrence(plan, inline, "float"):
                yield f"cells.{name}", text


def planned(cell: cells.Cell, width: int, beside: torch.dtype | None) -> Recurrence:
    steps, rows = 3, 2
    carry, carry_spec = pytree.tree_flatten(cell.initial(rows))
    x = torch.zeros(steps, rows, width)
    xs, x_spec = pytree.tree_flatten(x if beside is None else (x, torch.zeros(steps, rows, dtype=beside)))
    found = find(cell, carry, carry_spec, xs, x_spec)
    assert isinstance(found, tuple), found
    return found[0].recurrence


def engines() -> Iterator[tuple[str, str]]:
    """Products after sweeps, states computed again, sparse Jacobians, images of pruned networks."""
    yield "sparse", print_cpp.skeleton("sparse/symbolic.h")
    for real in REALS:
        yield "stretches", stretches.source(real)
        yield "products", products.source(real)
        yield "sparse", sparse.source(real)
        yield "pruned", native.images_source(real)


def pruned() -> Iterator[tuple[str, str]]:
    for window in WINDOWS:
        yield "pruned", print_conv.source(window, "float")


if __name__ == "__main__":
    counts = Counter(family for family, _ in texts())
    for family, count in counts.items():
        print(f"{count:5d} {family}")
    print(f"{counts.total():5d}")
