"""The Triton printer of values of several axes against the interpreter of the kernel language: drawn kernels, and whole
programs of cells with heads and matrices."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from bppsa.codegen.assembling import program
from bppsa.codegen.assembling.program import Program
from bppsa.codegen.gpu import native
from bppsa.codegen.gpu.triton import axes_units, print_triton
from bppsa.codegen.gpu.triton.sweep_axes import has_axes
from bppsa.codegen.language.expr import Access, Dot, Expr, dot, load, rewrite
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Reduce, Store
from bppsa.codegen.language.verify import verify
from bppsa.fxpasses.network import jacobian
from bppsa.runtime.recurrent.scan.extent import Extent
from tests.breadth import diagonal
from tests.codegen.kernels import add, at, delayed
from tests.codegen.programs import by_inference, by_sweep, interpreted, operands, packed
from tests.codegen.test_axes import SHAPES, drawn, matrix_vector
from tests.scan.folds import FOLDS
from tests.scan.matrices import MATRICES, Make, Sizes, delta, heads_by_einsum
from tests.scan.spellings import STEPS, spelled
from tests.scan.support import same
from tests.triton import models, needed
from tests.triton.models import WITH_HEADS, as_scanned
from tests.triton.test_print_triton import DEVICE, check, printed

needed.triton()

from tests.triton.races import watched  # noqa: E402  it knows Triton's interpreter

on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="the runtime keeps its buffers on the CPU")
ODD = (Sizes(2, 3, 4, 5), Sizes(3, 3, 3, 3), Sizes(1, 1, 1, 17))


@pytest.fixture(params=[axes_units.LEAST, 1], ids=["whole rows", "units"])
def least(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of how few numbers a unit may be: with 1 small kernels fall apart, too."""
    monkeypatch.setattr(axes_units, "LEAST", request.param)
    print_triton.printed.cache_clear()
    yield request.param
    print_triton.printed.cache_clear()


@functools.lru_cache
def built(make: Make, sizes: Sizes) -> Program:
    torch.manual_seed(0)
    recurrence = as_scanned(make(sizes))
    return program.build(recurrence, jacobian.transpose(recurrence))


def agrees(made: Program, extent: Extent) -> None:
    given = operands(made.recurrence, extent)
    with watched() as watch:
        got = by_sweep(printed(made), given, extent), by_inference(printed(made), given, extent)
    same(got[0], by_sweep(interpreted(made), given, extent), 1e-11)
    same(got[1], by_inference(interpreted(made), given, extent), 1e-11)
    assert not watch.found


# ---- kernels built by hand


def mixed(H: int) -> Kernel:
    """Products, folds and views of a state: of one axis and of two, read whole, in part and turned around; what runs
    along goes over in another order than it came."""
    two, turned = load(Access("h", strides=(H, 1))), load(Access("h", strides=(1, H)))
    inner = add(dot(Dot(Access("h"), "w")), dot(Dot(Access("x", 1), "u")))
    stores = (
        Store(Access("g", strides=(H, 1)), add(load(Access("g", strides=(1, H))), two)),
        Store(Access("most", strides=(0, 1)), add(two, turned), Reduce.MAX),
        Store(Access("sums", 1, strides=(1, 0)), turned, Reduce.COLUMNS),
        Store(Access("sums", 1, strides=(1, 0)), two, Reduce.COLUMNS),
    )
    state = add(at("inner"), load(Access("most", broadcast=True)))
    groups = (
        Group(H * H, (Store(Access("inner"), inner),)),
        Group(H * H, stores, (H, H)),
        Group(H * H, (Store(Access("h", after=True), state),)),
        Group(H, (Store(Access("y", 1), add(at("most"), at("inner", H * H - H))),)),
    )
    buffers = (
        Buffer("h", Kind.STATE, H * H),
        Buffer("g", Kind.RUNNING, H * H),
        Buffer("x", Kind.STREAM, 6),
        Buffer("y", Kind.STREAM, H + 1),
        Buffer("w", Kind.WEIGHT, H * H, H * H),
        Buffer("u", Kind.WEIGHT, H * H, 5),
        Buffer("sums", Kind.COLUMN_SUM, H + 1),
        Buffer("inner", Kind.SCRATCH, H * H),
        Buffer("most", Kind.SCRATCH, H),
    )
    return verify(Kernel("mixed", buffers, groups))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("least")
def test_drawn_kernels_are_the_interpreters(shape: tuple[int, ...], seed: int) -> None:
    kernel = drawn(shape, seed)
    with watched() as watch:
        for T, B, reverse in ((1, 1, False), (4, 3, True), (0, 2, False)):
            check(kernel, T, B, reverse=reverse)
    assert not watch.found


@pytest.mark.parametrize("H", [2, 3, 9])  # of 9 * 9 numbers a product is multiplied part by part
@pytest.mark.parametrize("reverse", [False, True])
def test_products_folds_and_views_of_one_state(H: int, reverse: bool) -> None:
    with watched() as watch:
        check(mixed(H), 4, 3, reverse=reverse)
        check(mixed(H), 4, 3, reverse=reverse, active=torch.tensor([3, 2, 2, 1]))
    assert not watch.found


def test_in_float32() -> None:
    for kernel in (matrix_vector(2, 4, 5), drawn((3, 8, 2, 3), 0), mixed(3)):
        check(kernel, 3, 2, torch.float32)


def test_a_missing_barrier_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of this file would see it."""
    text, load_module = print_triton.printed(mixed(3), "double"), native.module
    assert "tl.debug_barrier()" in text.source
    monkeypatch.setattr(native, "module", lambda source: load_module(source.replace("tl.debug_barrier()", "pass")))
    with watched() as watch:
        check(mixed(3), 4, 3)  # which one thread computes all the same
    assert watch.found


# ---- whole programs


@on_cpu
@pytest.mark.parametrize(("make", "sizes"), diagonal([*MATRICES, *FOLDS], ODD))
@pytest.mark.usefixtures("least")
def test_programs_agree_with_interpreted_ones(make: Make, sizes: Sizes) -> None:
    agrees(built(make, sizes), Extent(3, 2, reverse=sizes.B == 3))


@on_cpu
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.usefixtures("least")
def test_spellings_agree_with_interpreted_ones(name: str) -> None:
    agrees(built(spelled(name), Sizes(2, 2, 3, 2)), Extent(2, 2))


@on_cpu
@pytest.mark.parametrize("make", [delta, heads_by_einsum])
@pytest.mark.usefixtures("least")
def test_packed_rows_and_odd_extents(make: Make) -> None:
    for extent in (Extent(1, 1), packed([4, 2, 1]), packed([4, 4, 1], reverse=True)):
        agrees(built(make, Sizes(2, 2, 3, 2)), extent)


@on_cpu
def test_states_of_matrices_stay_in_registers() -> None:
    """DeltaNet's: no state is read from memory in the loop, and nothing goes through it between groups."""
    made = built(delta, Sizes(2, 4, 16, 16))
    for kernel in (made.forward, made.inference, made.backward):
        assert has_axes(kernel)
        text = print_triton.printed(kernel, "float")
        loop = [line for line in text.source.split("for i in range")[1].splitlines() if line.startswith(" " * 8)]
        assert text.scratch == 0
        assert not [line for line in loop if "tl.debug_barrier()" in line or "g_carry" in line]
        assert kernel is made.backward or not [line for line in loop if "tl.load(carry" in line]


@pytest.mark.parametrize("model", WITH_HEADS)
def test_heads_are_units(model: str) -> None:
    """Each has a program of its own, but for Mamba's backward: the gradient of what all channels read is a sum."""
    made = models.built(model, 16)
    units = [axes_units.units_of(kernel).count for kernel in (made.forward, made.inference, made.backward)]
    assert units == [4, 4, 1 if model == "MambaStep" else 4]


def test_what_is_shared_by_units_is_not_cut() -> None:
    """A fold over the axis, a state that is read turned around, a product."""
    H = 32
    whole, turned = load(Access("h", strides=(H, 1))), load(Access("h", strides=(1, H)))
    buffers = Buffer("h", Kind.STATE, H * H), Buffer("fold", Kind.SCRATCH, H)
    kept = Store(Access("h", after=True, strides=(H, 1)), whole)
    over_one = Store(Access("fold", strides=(0, 1)), whole, Reduce.ROWS)
    over_both = Store(Access("fold", broadcast=True), whole, Reduce.MAX)

    def units(*stores: Store) -> int:
        return axes_units.units_of(Kernel("units", buffers, (Group(H * H, stores, (H, H)),))).count

    assert units(kept) == units(kept, over_one) == 4
    assert units(replace(kept, value=turned)) == units(kept, over_both) == 1
    assert axes_units.units_of(mixed(H)).count == 1


def test_what_hands_its_value_on_is_read_first() -> None:
    """Carries of two axes, one of which becomes what the other was."""
    H = 3

    def turned(node: Expr) -> Expr | None:
        return load(replace(node.payload, strides=(1, H))) if isinstance(node.payload, Access) else None

    plain = delayed(H * H)
    stores = [
        Store(replace(store.target, strides=(1, H)), rewrite(store.value, turned)) for store in plain.groups[0].stores
    ]
    check(verify(replace(plain, groups=(Group(H * H, tuple(stores), (H, H)),))), 4, 3)
