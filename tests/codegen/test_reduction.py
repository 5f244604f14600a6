"""The reduction kernel: printed as it is interpreted, for columns that share a sample, and a chunk's whole J^T."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bppsa.codegen.cpu.build import available
from bppsa.codegen.cpu.native import NativeKernel
from bppsa.codegen.language.ir import Kind
from bppsa.runtime.recurrent.reduce import Reduction
from bppsa.runtime.recurrent.scan.extent import Extent
from bppsa.runtime.recurrent.scan.pairs import Pair
from bppsa.runtime.recurrent.sweep import Needs, Sweep
from tests.breadth import diagonal
from tests.codegen.programs import Operands, build, interpreted, operands, packed
from tests.scan.zoo import CASES, NATIVE, Example, make

EXTENTS = (Extent(4, 3), Extent(4, 3, reverse=True), packed([4, 4, 1]), packed([3, 2], reverse=True))


def reduced(sweep: Sweep, made: Reduction, given: Operands, extent: Extent) -> tuple[Pair, dict[str, Tensor]]:
    passed = sweep.forward(given.sources, given.carries, given.params, extent, save=True)
    known = {f"carry{i}": state for i, state in enumerate(passed.states)} | passed.private
    known |= {f"g_output{k}": g for k, g in enumerate(given.g_outputs)}
    running = made.start(extent.rows, extent.device)
    known |= made.buffers(running.flatten(0, 1))
    tensors = sweep.named(made.kernel, known, given.sources, given.params, extent)
    where = {"steps": extent.steps, "rows": extent.rows, "active": extent.active, "reverse": extent.reverse}
    made.run(list(tensors.values()), columns=made.columns, **where)
    return made.pair(running), made.buffers(running)


@pytest.mark.parametrize("extent", EXTENTS, ids=["", "reverse", "packed", "packed-reverse"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_chunk_is_an_affine_map(case: Callable[[], Example], extent: Extent) -> None:
    """Applied to any cotangent it gives what the backward sweep over the chunk gives."""
    sweep = interpreted(build(make(case)))
    given = operands(sweep.recurrence, extent)
    made = sweep.reduction()
    pair, _ = reduced(sweep, made, given, extent)
    passed = sweep.forward(given.sources, given.carries, given.params, extent, save=True)
    needs = Needs([False] * len(given.sources), [False] * len(given.params))
    found = sweep.backward(passed, given.sources, given.params, given.g_outputs, given.g_finals, extent, needs)
    order = made.structure.order
    g = torch.cat(given.g_finals, 1)[:, order].unsqueeze(-1)
    expected = torch.cat(found.carries, 1)[:, order].unsqueeze(-1)
    torch.testing.assert_close(pair.matrix.plain() @ g + pair.vector.plain(), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.skipif(available() is not None, reason="needs a C++ compiler")
@pytest.mark.parametrize(("case", "extent"), diagonal(NATIVE, EXTENTS))
def test_printed_as_interpreted(case: Callable[[], Example], extent: Extent) -> None:
    sweep = interpreted(build(make(case)))
    given = operands(sweep.recurrence, extent)
    made = sweep.reduction()
    _, expected = reduced(sweep, made, given, extent)
    native = replace(made, run=NativeKernel(made.kernel, "double"))
    _, got = reduced(sweep, native, given, extent)
    for name, running in got.items():
        torch.testing.assert_close(running, expected[name], rtol=1e-11, atol=1e-11, equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_it_writes_only_what_is_carried_along(case: Callable[[], Example]) -> None:
    kernel = interpreted(build(make(case))).reduction().kernel
    stored = {kernel.buffer(store.target.buffer).kind for group in kernel.groups for store in group.stores}
    assert stored <= {Kind.RUNNING, Kind.SCRATCH}
