"""Saved values in place of streams: where they fit, nobody reads them later, and the stream is the sweep's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bppsa.codegen.assembling.inplace import reuse_streams
from bppsa.codegen.language.expr import Access, Dot, Expr, Op, dot
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Reduce, Store, accessed
from bppsa.codegen.language.verify import verify
from tests.codegen.kernels import add, at, mul
from tests.codegen.programs import build
from tests.scan import zoo
from tests.scan.zoo import CASES, Example, H, make

W = 4
BUFFERS = {
    b.name: b
    for b in (
        Buffer("p", Kind.STREAM, 2 * W),  # a product computed for the sweep
        Buffer("x", Kind.STREAM, 2 * W),  # the caller's
        Buffer("saved", Kind.STREAM, 3 * W),
        Buffer("y", Kind.STREAM, W),
        Buffer("g", Kind.STREAM, W),
        Buffer("w", Kind.WEIGHT, W, W),
        Buffer("total", Kind.COLUMN_SUM, W),
    )
}
PRIVATE = {"p": 2 * W}


def kernel(name: str, *groups: Group) -> Kernel:
    return Kernel(name, tuple(b for b in BUFFERS.values() if b.name in accessed(groups)), groups, name == "forward")


def group(width: int, *stores: tuple[Access, Expr]) -> Group:
    return Group(width, tuple(Store(target, value) for target, value in stores))


def tanh(value: Expr) -> Expr:
    return Expr(Op.TANH, value)


READS_SAVED = group(W, (Access("g"), at("saved")))


def reused(forward: list[Group], backward: list[Group]) -> tuple[Kernel, Kernel]:
    kernels = reuse_streams(kernel("forward", *forward), kernel("backward", *backward), PRIVATE)
    for changed in kernels:
        verify(changed)
        assert {b.name for b in changed.buffers} == accessed(changed.groups)
    return kernels


def places(kernel: Kernel) -> list[tuple[str, int]]:
    return [(store.target.buffer, store.target.column) for group in kernel.groups for store in group.stores]


def test_a_saved_value_takes_the_place_of_what_it_was_computed_from() -> None:
    forward, backward = reused([group(W, (Access("saved"), tanh(at("p"))))], [READS_SAVED])
    assert places(forward) == [("p", 0)]
    assert backward.groups[0].stores[0].value is at("p")
    assert "saved" not in {b.name for b in (*forward.buffers, *backward.buffers)}


def test_each_value_takes_a_place_of_its_own() -> None:
    stores = (Access("saved"), tanh(at("p"))), (Access("saved", W), tanh(at("p", W))), (Access("saved", 2 * W), at("x"))
    reads = group(W, (Access("g"), add(at("saved"), mul(at("saved", W), at("saved", 2 * W)))))
    forward, backward = reused([group(W, *stores)], [reads])
    assert places(forward) == [("p", 0), ("p", W), ("saved", 0)]
    assert backward.groups[0].stores[0].value is add(at("p"), mul(at("p", W), at("saved")))
    assert forward.buffer("saved").width == backward.buffer("saved").width == W


def test_part_of_a_saved_value_moves_along() -> None:
    """A slice of it, and the operand of a product."""
    reads = group(2, (Access("g"), at("saved", 1))), group(W, (Access("g"), dot(Dot(Access("saved"), "w"))))
    _, backward = reused([group(W, (Access("saved"), tanh(at("p", W))))], [*reads])
    assert backward.groups[0].stores[0].value is at("p", W + 1)
    assert backward.groups[1].dots == (Dot(Access("p", W), "w"),)


KEEPS: dict[str, tuple[list[Group], list[Group]]] = {
    "the caller's stream": ([group(W, (Access("saved"), tanh(at("x"))))], [READS_SAVED]),
    "a later group reads it": (
        [group(W, (Access("saved"), tanh(at("p")))), group(W, (Access("y"), at("p")))],
        [READS_SAVED],
    ),
    "a later group reads part of it": (
        [group(W, (Access("saved"), tanh(at("p")))), group(1, (Access("y"), at("p", 3)))],
        [READS_SAVED],
    ),
    "a later product reads it": (
        [group(W, (Access("saved"), tanh(at("p")))), group(W, (Access("y"), dot(Dot(Access("p"), "w"))))],
        [READS_SAVED],
    ),
    "the backward reads it": (
        [group(W, (Access("saved"), tanh(at("p"))))],
        [group(W, (Access("g"), mul(at("saved"), at("p"))))],
    ),
    "another width": (
        [group(2, (Access("saved"), at("p"))), group(W, (Access("y"), at("p")))],
        [group(2, (Access("g"), at("saved")))],
    ),
    "it is wider than what is free": (
        [
            group(2, (Access("y"), at("p"))),
            group(W, (Access("saved"), at("x"))),
            group(2, (Access("y", 2), at("p", 2))),
        ],
        [READS_SAVED],
    ),
    "its own group reads it shifted": (
        [group(W, (Access("saved"), add(at("p"), at("p", 1))))],
        [READS_SAVED],
    ),
    "one column of it is broadcast": (
        [group(W, (Access("saved"), add(at("p"), at("p", 2, broadcast=True))))],
        [READS_SAVED],
    ),
    "nobody reads it": ([group(W, (Access("saved"), at("x"))), group(W, (Access("y"), at("x")))], [READS_SAVED]),
}


@pytest.mark.parametrize("name", KEEPS)
def test_a_stream_that_is_still_wanted_is_kept(name: str) -> None:
    before, after = KEEPS[name]
    forward, _ = reused(before, after)
    assert [target for target in places(forward) if target[0] == "p"] == []
    assert "saved" in {b.name for b in forward.buffers}


def test_sums_stay_where_they_are() -> None:
    summed = Group(W, (Store(Access("total"), at("p"), Reduce.COLUMNS), Store(Access("saved"), tanh(at("p")))))
    forward, _ = reused([summed], [READS_SAVED])
    assert places(forward) == [("total", 0), ("p", 0)]


# ---- on whole cells


def written(kernel: Kernel) -> set[str]:
    return {store.target.buffer for group in kernel.groups for store in group.stores}


def test_gates_overwrite_their_pre_activations() -> None:
    for case, columns in ((zoo.gru, 3 * H), (zoo.lstm, 4 * H)):
        built = build(make(case))
        stored = [s.target for g in built.forward.groups for s in g.stores if s.target.buffer == "stream0"]
        assert len(stored) * H == columns
        assert "stream0" in {b.name for b in built.backward.arguments}


@pytest.mark.parametrize("case", CASES)
def test_only_products_made_for_the_sweep_are_overwritten(case: Callable[[], Example]) -> None:
    """Never what the caller gave, in training or inference, forward or backward."""
    built = build(make(case))
    own = {f"stream{k}" for k, stream in enumerate(built.recurrence.streams) if stream.weight is not None}
    kernels = (built.forward, built.inference, built.backward)
    assert {name for kernel in kernels for name in written(kernel) if name.startswith("stream")} <= own
    assert not any(name.startswith("stream") for kernel in kernels[1:] for name in written(kernel))
    assert not any(name.startswith(("param", "weight")) for kernel in kernels for name in written(kernel))


@pytest.mark.parametrize("case", CASES)
def test_where_the_sweep_multiplies_itself_there_is_nothing_to_overwrite(case: Callable[[], Example]) -> None:
    built = build(make(case), inline=True)
    assert not any(name.startswith("source") for name in written(built.forward))
