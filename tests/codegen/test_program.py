"""Whole programs, interpreted and compiled, against eager PyTorch; and that every program is derived from its cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from bppsa.codegen.assembling.program import Program
from bppsa.codegen.cpu import print_cpp
from bppsa.codegen.cpu.build import available, build_many
from bppsa.codegen.cpu.native import NativeKernel
from bppsa.codegen.language.ir import Kernel, Kind
from bppsa.runtime.recurrent.scan.extent import Extent
from bppsa.runtime.recurrent.sweep import Sweep
from tests.codegen.programs import (
    Operands,
    build,
    by_autograd,
    by_inference,
    by_sweep,
    interpreted,
    kernels,
    operands,
    packed,
)
from tests.scan import zoo
from tests.scan.support import reduction_of, same
from tests.scan.zoo import CASES, NATIVE, Example, example, h, make, random, x

EXTENTS = [
    Extent(1, 1),
    Extent(1, 3),
    Extent(2, 3, reverse=True),
    Extent(3, 2),
    Extent(5, 3),
    Extent(5, 3, reverse=True),
    packed([4, 2, 1]),
    packed([4, 4, 1], reverse=True),
    packed([3]),
]


def check(sweep: Sweep, built: Program, given: Operands, extent: Extent, tolerance: float = 1e-11) -> None:
    expected = by_autograd(built.recurrence, given, extent)
    same(by_sweep(sweep, given, extent), expected, tolerance)
    got = by_inference(sweep, given, extent)
    same(got, expected[: len(got)], tolerance)


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_replay_of_known_states_leaves_what_the_forward_does(case: Callable[[], Example], inline: bool) -> None:
    built = build(make(case), inline=inline)
    sweep = interpreted(built)
    for extent in EXTENTS:
        given = operands(built.recurrence, extent)
        expected = sweep.forward(given.sources, given.carries, given.params, extent, save=True)
        found = sweep.replay(expected.states, given.sources, given.params, extent)
        assert list(found.private) == list(expected.private)
        same(list(found.private.values()), list(expected.private.values()), 1e-12)
        same([*found.outputs, *found.finals], [*expected.outputs, *expected.finals], 1e-12)
    assert not any(store.target.after for group in built.replay.groups for store in group.stores)


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_program_is_its_recurrence(case: Callable[[], Example], inline: bool) -> None:
    built = build(make(case), inline=inline)
    for extent in EXTENTS:
        check(interpreted(built), built, operands(built.recurrence, extent), extent)


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_some_outputs_only(case: Callable[[], Example]) -> None:
    """A cotangent that is not there counts as zeros."""
    built, extent = build(make(case)), Extent(4, 2)
    given = operands(built.recurrence, extent)
    sweep = interpreted(built)
    passed = sweep.forward(given.sources, given.carries, given.params, extent, save=True)
    everything = [True] * len(given.sources), [True] * len(given.params)

    def gradients(g_outputs: Sequence[Tensor | None], g_finals: Sequence[Tensor | None]) -> list[Tensor | None]:
        from bppsa.runtime.recurrent.sweep import Needs

        got = sweep.backward(passed, given.sources, given.params, g_outputs, g_finals, extent, Needs(*everything))
        return [*got.sources, *got.carries, *got.params]

    for g_outputs, g_finals in (
        ([None] * len(given.g_outputs), given.g_finals),
        (given.g_outputs, [None] * len(given.g_finals)),
    ):
        zeros = [[torch.zeros_like(like) if g is None else g for like, g in zip(a, b, strict=True)]
                 for a, b in ((given.g_outputs, g_outputs), (given.g_finals, g_finals))]  # fmt: skip
        same(gradients(g_outputs, g_finals), gradients(*zeros), 0)


def native(built: Program, real: str) -> Sweep:
    def compiled(wanted: Sequence[Kernel]) -> list[NativeKernel]:
        build_many([print_cpp.source(kernel, real) for kernel in wanted])
        return [NativeKernel(kernel, real) for kernel in wanted]

    return Sweep(built, torch.float64, compiled, lambda: reduction_of(built.recurrence, False))


@pytest.mark.skipif(available() is not None, reason="needs a C++ compiler")
@pytest.mark.parametrize("case", NATIVE)
def test_compiled_programs_agree_with_interpreted_ones(case: Callable[[], Example]) -> None:
    built = build(make(case))
    machine = native(built, "double")
    for extent in (*EXTENTS, Extent(9, 7), packed([9, 9, 8, 5, 5, 1, 1], reverse=True)):
        given = operands(built.recurrence, extent)
        same(by_sweep(machine, given, extent), by_sweep(interpreted(built), given, extent), 1e-11)
        same(by_inference(machine, given, extent), by_inference(interpreted(built), given, extent), 1e-11)


# ---- every program is derived from its cell

Gru = Callable[[nn.GRUCell, Tensor, Tensor], Tensor]


def gates(cell: nn.GRUCell, h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    from_x = nn.functional.linear(x, cell.weight_ih, cell.bias_ih).chunk(3, 1)
    return *from_x, *nn.functional.linear(h, cell.weight_hh, cell.bias_hh).chunk(3, 1)


def gru(cell: nn.GRUCell, h: Tensor, x: Tensor) -> Tensor:
    x_r, x_z, x_n, h_r, h_z, h_n = gates(cell, h, x)
    z = torch.sigmoid(x_z + h_z)
    return (1 - z) * torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n) + z * h


def reset_on_both(cell: nn.GRUCell, h: Tensor, x: Tensor) -> Tensor:
    """r moved to meet all that goes into the tanh."""
    x_r, x_z, x_n, h_r, h_z, h_n = gates(cell, h, x)
    z = torch.sigmoid(x_z + h_z)
    return (1 - z) * torch.tanh(torch.sigmoid(x_r + h_r) * (x_n + h_n)) + z * h


def reset_before_the_product(cell: nn.GRUCell, h: Tensor, x: Tensor) -> Tensor:
    x_r, x_z, x_n, h_r, h_z, _ = gates(cell, h, x)
    z, r = torch.sigmoid(x_z + h_z), torch.sigmoid(x_r + h_r)
    return (1 - z) * torch.tanh(x_n + (r * h) @ cell.weight_hh[-zoo.H :].t()) + z * h


def another_activation(cell: nn.GRUCell, h: Tensor, x: Tensor) -> Tensor:
    x_r, x_z, x_n, h_r, h_z, h_n = gates(cell, h, x)
    z = torch.sigmoid(x_z + h_z)
    return (1 - z) * nn.functional.elu(x_n + torch.sigmoid(x_r + h_r) * h_n) + z * h


def another_gate(cell: nn.GRUCell, h: Tensor, x: Tensor) -> Tensor:
    x_r, x_z, x_n, h_r, h_z, h_n = gates(cell, h, x)
    z, o = torch.sigmoid(x_z + h_z), torch.sigmoid(x_n * h_z)
    return o * ((1 - z) * torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n) + z * h)


def without_update(cell: nn.GRUCell, h: Tensor, x: Tensor) -> Tensor:
    x_r, _, x_n, h_r, _, h_n = gates(cell, h, x)
    return torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)


VARIANTS: tuple[Gru, ...] = (
    gru,
    reset_on_both,
    reset_before_the_product,
    another_activation,
    another_gate,
    without_update,
)


def variant(step: Gru, hidden: int = zoo.H) -> Example:
    torch.manual_seed(0)
    cell = nn.GRUCell(zoo.I, hidden).double()
    return example(lambda h, x: ((n := step(cell, h, x)), n), h(hidden), x(), modules=(cell,))


def test_a_changed_cell_is_another_kernel() -> None:
    """No text is written for one model: each variant of a GRU has its own."""
    texts = [tuple(print_cpp.source(kernel, "float") for kernel in kernels(build(variant(step)))) for step in VARIANTS]
    for i, own in enumerate(texts):
        for other in texts[:i]:
            assert all(a != b for a, b in zip(own, other, strict=True))


@pytest.mark.parametrize("step", VARIANTS)
def test_a_changed_cell_is_right(step: Gru) -> None:
    built = build(variant(step))
    for extent in EXTENTS:
        check(interpreted(built), built, operands(built.recurrence, extent), extent)


def test_a_cell_written_otherwise_is_the_same_kernel() -> None:
    """nn.GRUCell and its formula are recorded as the same ops, but for the order of one sum."""
    own = build(make(zoo.gru))
    assert len(own.forward.groups) == len(build(variant(gru)).forward.groups) == 1


@pytest.mark.parametrize("step", [gru, reset_before_the_product])
def test_widths_are_no_part_of_the_text(step: Gru) -> None:
    """A few classes of tiles serve all widths; the widths themselves are run-time numbers."""
    texts = {}
    for hidden in (33, 34, 35, 36, 40):
        built = build(variant(step, hidden)) if step is gru else build(variant_of_width(hidden))
        for kernel in kernels(built):
            texts.setdefault(kernel.name, set()).add(print_cpp.source(kernel, "float"))
            assert hidden in print_cpp.dims(kernel)
            assert str(hidden * 3) not in print_cpp.source(kernel, "float").split("struct Kernel")[1]
    assert all(len(different) <= 3 for different in texts.values())


def variant_of_width(hidden: int) -> Example:
    w, u, v = random(zoo.I, hidden), random(hidden, hidden), random(hidden, hidden)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        r = torch.sigmoid(x @ w + h @ u)
        h = torch.tanh(x @ w + (r * h) @ v)
        return h, h

    return example(cell, h(hidden), x(), w, u, v)


# ---- what a program keeps, and what it does not


def test_what_can_be_had_cheaply_is_not_saved() -> None:
    """tanh of a state is computed again from the stored state, gates overwrite what they were computed from."""
    built = build(make(zoo.lstm))
    assert "saved" not in {b.name for b in built.forward.buffers}
    built = build(make(zoo.vanilla))
    assert {b.name for b in built.backward.arguments} == {
        "carry0",
        "g_carry0",
        "g_output0",
        "cotangents",
        "sums",
        "weight1t",
    }


def test_an_output_that_is_a_carry_is_stored_once() -> None:
    assert build(make(zoo.gru)).output_carry == (0,)
    built = build(make(zoo.lstm))
    assert built.output_carry == (0,)
    assert not [b for b in built.forward.buffers if b.name.startswith("output")]


def test_inference_keeps_no_history_of_what_nobody_sees() -> None:
    kinds = {b.name: b.kind for b in build(make(zoo.lstm)).inference.buffers}
    assert (kinds["carry0"], kinds["carry1"]) == (Kind.STATE, Kind.RUNNING)
    assert "saved" not in kinds


def test_gradients_of_weights_wait_until_after_the_loop() -> None:
    """No kernel holds a weight's gradient: the sweep leaves the cotangents of all steps."""
    for case in CASES:
        built = build(make(case))
        assert not [b for b in built.backward.buffers if b.kind is Kind.COLUMN_SUM and b.name != "sums"]
        declared = [b for kernel in kernels(built) for b in kernel.buffers]
        assert {b.kind for b in declared if b.name.startswith("weight")} <= {Kind.WEIGHT}, "which no store may touch"


def test_a_product_of_x_runs_within_the_sweep_if_asked() -> None:
    given = make(zoo.gru)
    apart, within = build(given), build(given, inline=True)
    assert [len(group.dots) for group in apart.inference.groups] == [3]
    assert [len(group.dots) for group in within.inference.groups] == [6]
    assert "source0" in {b.name for b in within.inference.buffers}
    assert "stream0" not in {b.name for b in within.inference.buffers}
