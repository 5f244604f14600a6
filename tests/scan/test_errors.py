"""What is wrong with a call is said before or at its first step: which leaf, what it was, what to do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa import cells
from bppsa.errors import ArgumentError, BppsaError, CarryError, InputError, InputIndexError, InputValueError
from bppsa.frontend.cell.checks import name_of
from tests.scan.zoo import B, H, T, h, random, x

Cell = Callable[[Any, Any], Any]

# what the message must say; carry; cell
CARRIES: dict[str, tuple[list[str], Callable[[], Any], Cell]] = {
    "shape": (["carry was [3, 6]", "is [3, 3]"], h, lambda s, x: (s[:, :3], x)),
    "shape of a leaf": (
        ["carry['b'][1]", "[3, 6]", "[3, 12]"],
        lambda: {"a": h(), "b": (h(), h())},
        lambda s, x: ({"a": s["a"], "b": (s["a"], torch.cat(s["b"], 1))}, x),
    ),
    "dtype": (["carry was", "torch.float64", "torch.float32"], h, lambda s, x: (s.float(), x)),
    "dtype of a leaf": (
        ["carry[1]", "torch.bool"],
        lambda: (h(), h()),
        lambda s, x: ((s[0], s[0] > 0), x),
    ),
    "batch": (["[3, 6]", "[1, 6]"], h, lambda s, x: (s[:1], x)),
    "structure": (["structure", "was Tensor and is (Tensor, Tensor)"], h, lambda s, x: ((s, s), x)),
    "length": (["structure"], lambda: (h(), h()), lambda s, x: ((s[0],), x)),
    "keys": (["structure", "'b'"], lambda: {"a": h()}, lambda s, x: ({"b": s["a"]}, x)),
    "kind": (["structure"], lambda: (h(), h()), lambda s, x: ([s[0], s[1]], x)),
    "a number": (["carry is a float"], h, lambda s, x: (1.0, x)),
    "one result": (["return (next carry, y)", "Tensor"], h, lambda s, x: s + x),
    "three results": (["return (next carry, y)", "3 values"], h, lambda s, x: (s, x, x)),
    "a list": (["return (next carry, y), a tuple", "list"], h, lambda s, x: [s, x]),
    "no y": (["y is None", "(carry, ())"], h, lambda s, x: (s, None)),
    "a y that is no tensor": (["y['a'][1] is a float"], h, lambda s, x: (s, {"a": (x, 1.0)})),
}


def messages(carry: Any, cell: Cell) -> str:
    with pytest.raises(CarryError) as caught:
        bppsa.scan(cell, carry, x(H))
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, BppsaError)
    return str(caught.value)


@pytest.mark.parametrize("name", CARRIES)
def test_a_carry_that_changes(name: str) -> None:
    expected, carry, cell = CARRIES[name]
    said = messages(carry(), cell)
    assert all(part in said for part in (*expected, "bppsa.scan")), said


@pytest.mark.parametrize("name", CARRIES)
def test_the_loop_says_the_same(name: str) -> None:
    """A cell that is not fused, here as it reads a value."""
    expected, carry, cell = CARRIES[name]

    def reads(s: Any, x: Tensor) -> Any:
        assert x.sum().item() != 3
        return cell(s, x)

    said = messages(carry(), reads)
    assert all(part in said for part in expected), said


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_pytorchs_cells_take_their_arguments_in_another_order(kind: Any) -> None:
    """The text has a step around the cell that works."""
    cell = kind(H, H).double()
    carry = (h(), h()) if kind is nn.LSTMCell else h()
    said = messages(carry, cell)
    assert f"nn.{kind.__name__} takes (x, carry)" in said
    made: dict[str, Any] = {"cell": cell}
    exec(said[said.index("def step") :], made)
    bppsa.scan(made["step"], carry, x(H))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_pytorchs_recurrent_layers_are_no_cells(kind: Any) -> None:
    for layer in (kind(H, H).double(), bppsa.compile(kind(H, H).double())):
        with pytest.raises(BppsaError, match=rf"nn\.{kind.__name__} runs whole sequences; call it directly"):
            bppsa.scan(layer, h(), x(H))


def test_a_carry_that_changes_later() -> None:
    """Only the loop can meet this: the fused path has no branches."""
    count = []

    def cell(s: Tensor, x: Tensor) -> Any:
        count.append(x.sum().item())
        return (s if len(count) < 5 else s[:, :2]), x

    assert "[3, 2]" in messages(h(), cell)


INPUTS: dict[str, tuple[type[Exception], str, Any, Any]] = {
    "no step": (RuntimeError, "at least 1", h(), torch.empty(0, B, H, dtype=torch.float64)),
    "steps disagree": (RuntimeError, "[5, 4]", h(), (x(H), x(H)[:4])),
    "no xs": (RuntimeError, "xs has no tensors", h(), ()),
    "a scalar x": (RuntimeError, "steps", h(), (x(H), torch.ones(()))),
    "a number in xs": (TypeError, "xs is an int", h(), (x(H), 3)),
    "None in xs": (TypeError, "xs is None", h(), (x(H), None)),
    "a number in the carry": (TypeError, "carry is a float", (h(), 1.0), x(H)),
    "a string in the carry": (TypeError, "carry is a str", {"a": "b"}, x(H)),
}


@pytest.mark.parametrize("name", INPUTS)
def test_bad_operands(name: str) -> None:
    kind, text, carry, xs = INPUTS[name]
    with pytest.raises(BppsaError, match=r"bppsa\.scan") as caught:
        bppsa.scan(lambda s, x: (s, s), carry, xs)
    assert isinstance(caught.value, kind)
    assert text in str(caught.value)


def test_no_steps_is_an_input_error() -> None:
    with pytest.raises(InputError):
        bppsa.scan(lambda s, x: (s, s), h(), torch.empty(0, B, H))


def test_what_the_cell_raises_comes_through() -> None:
    class Own(Exception):
        pass

    def cell(s: Tensor, x: Tensor) -> Any:
        raise Own("as it was")

    with pytest.raises(Own, match="as it was"):
        bppsa.scan(cell, h(), x(H))


# cell on a carry [3, 6] and x_t [3, 4]; PyTorch's type and words
FAILS: dict[str, tuple[Cell, type[BppsaError], type[Exception], str]] = {
    "product": (lambda s, x: (s @ s, x), InputError, RuntimeError, "cannot be multiplied"),
    "sum": (lambda s, x: (s + x, x), InputError, RuntimeError, "must match"),
    "dtype": (lambda s, x: (s @ torch.ones(H, H), x), InputError, RuntimeError, "dtype"),
    "dimension": (lambda s, x: (s, x.sum(5)), InputIndexError, IndexError, "out of range"),
    "value": (lambda s, x: (s, rearranged(x)), InputValueError, ValueError, "as many"),
}


def rearranged(x: Tensor) -> Tensor:
    raise ValueError("give as many axes as there are")


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "op by op"])
@pytest.mark.parametrize("name", FAILS)
def test_what_fails_within_the_cell_says_what_it_was_given(name: str, fused: bool) -> None:
    fails, ours, theirs, words = FAILS[name]

    def cell(s: Tensor, x: Tensor) -> Any:
        assert fused or x.sum().item() != 3
        return fails(s, x)

    with pytest.raises(ours, match=words) as caught:
        bppsa.scan(cell, h(), x(4))
    assert isinstance(caught.value, theirs)
    assert type(caught.value.__cause__) is theirs
    said = str(caught.value)
    assert "bppsa.scan: the cell cell fails on carry [3, 6] torch.float64 and x_t [3, 4] torch.float64: " in said
    assert str(caught.value.__cause__) in said


def test_the_leaves_that_a_cell_failed_on_are_named() -> None:
    with pytest.raises(InputError, match=r"carry\['a'\] \[3, 6\] torch.float64 and x_t\[0\] .*, x_t\[1\] \[3\] "):
        bppsa.scan(lambda s, x: (s, s["a"] @ x[0]), {"a": h()}, (x(4), x(1)[..., 0]))


@pytest.mark.parametrize("cell", [3, torch.ones(2), "gru", None], ids=str)
def test_a_cell_that_cannot_be_called(cell: Any) -> None:
    with pytest.raises(ArgumentError, match=f"the cell is a {type(cell).__name__}; give a function") as caught:
        bppsa.scan(cell, h(), x())
    assert isinstance(caught.value, TypeError)


def test_a_scan_within_a_cell_speaks_for_itself() -> None:
    def outer(s: Tensor, x: Tensor) -> Any:
        return bppsa.scan(lambda s, x: (s @ x, x), s, x[None])[0], s

    with pytest.raises(InputError) as caught:
        bppsa.scan(outer, h(), x())
    assert str(caught.value).count("bppsa.scan") == 1


def decay(s: Tensor, x: Tensor) -> Any:
    return 0.9 * s + x, s


def test_a_cell_goes_by_a_name_that_can_be_found() -> None:
    def inner(s: Tensor, x: Tensor) -> Any:
        return decay(s, x)

    here = decay.__code__.co_filename.rpartition("/")[2]
    unnamed = lambda s, x: decay(s, x)  # noqa: E731
    assert name_of(unnamed) == f"lambda ({here}:{unnamed.__code__.co_firstlineno})"
    assert [name_of(cell) for cell in (decay, inner, functools.partial(decay), cells.MinGRU(2, 2))] == [
        "decay",
        "inner",
        "decay",
        "MinGRU",
    ]


def test_an_error_does_not_spoil_later_calls() -> None:
    def cell(s: Tensor, x: Tensor) -> Any:
        return s + x, s

    with pytest.raises(RuntimeError):
        bppsa.scan(cell, random(B, H + 1), random(T, B, H))
    carry, xs = h(), x(H)
    torch.testing.assert_close(bppsa.scan(cell, carry, xs)[0], carry + xs.sum(0))
