"""What is wrong with a call is said before or at its first step: which leaf, what it was, what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bppsa
from bppsa.errors import BppsaError, CarryError, InputError
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
    "structure": (["structure", "tuple"], h, lambda s, x: ((s, s), x)),
    "length": (["structure"], lambda: (h(), h()), lambda s, x: ((s[0],), x)),
    "keys": (["structure", "'b'"], lambda: {"a": h()}, lambda s, x: ({"b": s["a"]}, x)),
    "kind": (["structure"], lambda: (h(), h()), lambda s, x: ([s[0], s[1]], x)),
    "a number": (["carry is a float"], h, lambda s, x: (1.0, x)),
    "one result": (["return (next carry, y)", "Tensor"], h, lambda s, x: s + x),
    "three results": (["return (next carry, y)"], h, lambda s, x: (s, x, x)),
    "a list": (["return (next carry, y)", "list"], h, lambda s, x: [s, x]),
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
    "a number in xs": (TypeError, "xs is a int", h(), (x(H), 3)),
    "None in xs": (TypeError, "xs is a NoneType", h(), (x(H), None)),
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
    with pytest.raises(RuntimeError, match="must match"):
        bppsa.scan(lambda s, x: (s + x, s), random(B, H + 1), random(T, B, H))


def test_an_error_does_not_spoil_later_calls() -> None:
    def cell(s: Tensor, x: Tensor) -> Any:
        return s + x, s

    with pytest.raises(RuntimeError):
        bppsa.scan(cell, random(B, H + 1), random(T, B, H))
    carry, xs = h(), x(H)
    torch.testing.assert_close(bppsa.scan(cell, carry, xs)[0], carry + xs.sum(0))
