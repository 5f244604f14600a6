"""Bad input raises an error of ours that is also of PyTorch's type, and names the module, the shapes and the mend."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from bppsa.errors import BppsaError
from tests.modules.conftest import Taken
from tests.modules.models import KINDS, fast

Shape = tuple[int, ...]


def x(*shape: int, **options: Any) -> Tensor:
    return torch.zeros(*shape, **options)


def packed(*features: int, dtype: torch.dtype = torch.float32) -> PackedSequence:
    return pack_padded_sequence(x(5, 2, *features, dtype=dtype), [5, 3])


# name: input, shape of h0 (and of c0), its options, what the message must say
BAD: dict[str, tuple[Any, Shape | None, dict[str, Any], str]] = {
    "features": (x(5, 2, 7), None, {}, r"\[5, 2, 7\] has 7 features where input_size is 3"),
    "rank 1": (x(3), None, {}, r"\[3\] has 1 dimensions"),
    "rank 4": (x(1, 5, 2, 3), None, {}, r"\[1, 5, 2, 3\] has 4 dimensions"),
    "no step": (x(0, 2, 3), None, {}, r"\[0, 2, 3\] has no time step"),
    "no step, unbatched": (x(0, 3), None, {}, r"\[0, 3\] has no time step"),
    "h0 batch": (x(5, 2, 3), (1, 3, 4), {}, r"h0 \[1, 3, 4\] does not go with input \[5, 2, 3\]; give \[1, 2, 4\]"),
    "h0 width": (x(5, 2, 3), (1, 2, 5), {}, r"h0 \[1, 2, 5\]"),
    "h0 layers": (x(5, 2, 3), (2, 2, 4), {}, r"h0 \[2, 2, 4\]"),
    "h0 rank": (x(5, 2, 3), (2, 4), {}, r"h0 \[2, 4\]"),
    "h0 rank, unbatched": (x(5, 3), (1, 1, 4), {}, r"h0 \[1, 1, 4\].*give \[1, 4\]"),
    "dtype": (x(5, 2, 3, dtype=torch.float64), None, {}, "input .* has dtype torch.float64"),
    "integers": (x(5, 2, 3, dtype=torch.int64), None, {}, "input .* has dtype torch.int64"),
    "h0 dtype": (x(5, 2, 3), (1, 2, 4), {"dtype": torch.float64}, "h0 .* has dtype torch.float64"),
    "device": (x(5, 2, 3, device="meta"), None, {}, "input .* has device meta"),
    "h0 device": (x(5, 2, 3), (1, 2, 4), {"device": "meta"}, "h0 .* has device meta"),
    "packed features": (packed(7), None, {}, "7 features where input_size is 3"),
    "packed rank": (packed(3, 1), None, {}, r"packed data \[8, 3, 1\] has 3 dimensions"),
    "packed dtype": (packed(3, dtype=torch.float64), None, {}, "input .* has dtype torch.float64"),
    "packed h0 batch": (packed(3), (1, 3, 4), {}, r"h0 \[1, 3, 4\]"),
    "packed h0 width": (packed(3), (1, 2, 5), {}, r"h0 \[1, 2, 5\]"),
    "packed rows": (PackedSequence(x(7, 3), torch.tensor([2, 2, 2, 1, 1])), None, {}, "fewer rows .* sum to, 8"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BAD)
def test_bad_input(kind: Any, name: str, taken: list[Taken]) -> None:
    given, shape, options, words = BAD[name]
    model = nn.ModuleDict({"part": nn.Sequential(kind(3, 4))})
    hx = None if shape is None else torch.zeros(shape, **options)
    if hx is not None and kind is nn.LSTM:
        hx = (hx, hx.clone())
    with pytest.raises(Exception) as theirs:  # noqa: PT011 (PyTorch decides)
        model["part"][0](given, hx)
    with pytest.raises(BppsaError, match=rf"^part\.0 \({kind.__name__}\): .*{words}") as ours:
        fast(model)["part"][0](given, hx)
    assert isinstance(ours.value, theirs.type)
    assert str(theirs.value) in str(ours.value)
    assert not taken


@pytest.mark.parametrize("parameter", ["weight_hh_l0", "bias_hh_l0"])
@pytest.mark.parametrize("change", [{"dtype": torch.float64}, {"device": "meta"}], ids=str)
def test_weights_of_mixed_kinds(parameter: str, change: dict[str, Any], taken: list[Taken]) -> None:
    ours = fast(nn.GRU(3, 4))
    setattr(ours, parameter, nn.Parameter(getattr(ours, parameter).detach().to(**change)))
    with pytest.raises(BppsaError, match=rf"<model> \(GRU\): {parameter} .* has d(type|evice) ") as error:
        ours(x(5, 2, 3))
    assert isinstance(error.value, RuntimeError)
    assert not taken


# name: the arguments, and what the message must say of them for nn.RNN and nn.GRU, and for nn.LSTM where it is another
PAIR = "give the tuple (h0, c0)"
NO_TENSOR: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "None": ((None,), "input is None; give a tensor [T, B, 3]", ""),
    "array": ((x(5, 2, 3).numpy(),), "input is an ndarray; give a tensor [T, B, 3]", ""),
    "list": (([x(5, 2, 3)],), "input is a list of 1; give a tensor", ""),
    "tuple": (((x(5, 2, 3), x(5, 2, 3)),), "input is a tuple of 2; give a tensor", ""),
    "number": ((3,), "input is an int; give a tensor", ""),
    "hx: text": ((x(5, 2, 3), "h0"), "hx is a str; give a tensor [1, B, 4]", f"hx is a str; {PAIR}"),
    "hx: array": ((x(5, 2, 3), x(1, 2, 4).numpy()), "hx is an ndarray; give a tensor", f"hx is an ndarray; {PAIR}"),
    "hx: one": ((x(5, 2, 3), (x(1, 2, 4),)), "hx is a tuple of 1; give a tensor", f"hx is a tuple of 1; {PAIR}"),
    "hx: None twice": ((x(5, 2, 3), (None, None)), "hx is a tuple of 2; give a tensor", "h0 is None; give a tensor"),
    "hx: half": ((x(5, 2, 3), [x(1, 2, 4), None]), "hx is a list of 2", "c0 is None; give a tensor [1, B, 4]"),
    "packed, hx: array": ((packed(3), x(1, 2, 4).numpy()), "hx is an ndarray", f"hx is an ndarray; {PAIR}"),
    "packed, hx: list": ((packed(3), [x(1, 2, 4)]), "hx is a list of 1", f"hx is a list of 1; {PAIR}"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NO_TENSOR)
def test_what_is_no_tensor(kind: Any, name: str, taken: list[Taken]) -> None:
    arguments, words, of_lstm = NO_TENSOR[name]
    model = kind(3, 4)
    said = f"<model> ({kind.__name__}): {of_lstm if kind is nn.LSTM and of_lstm else words}"
    with pytest.raises(Exception) as theirs:  # noqa: PT011 (PyTorch decides)
        model(*arguments)
    with pytest.raises(BppsaError, match=re.escape(said)) as ours:
        fast(model)(*arguments)
    assert isinstance(ours.value, theirs.type)
    assert str(theirs.value) in str(ours.value)
    assert not taken


def test_indices_of_a_packed_sequence_that_are_no_tensor() -> None:
    given, model = packed(3), nn.GRU(3, 4)
    broken = PackedSequence(given.data, given.batch_sizes, [1, 0], [1, 0])
    with pytest.raises(TypeError) as theirs:
        model(broken)
    with pytest.raises(TypeError) as ours:
        fast(model)(broken)
    assert str(ours.value) == str(theirs.value)


STATE = x(2, 2, 4)


@pytest.mark.parametrize("hx", [STATE, (STATE,), [STATE], (STATE, STATE, STATE)], ids=["Tensor", "1", "list", "3"])
@pytest.mark.parametrize("layers", [1, 2])
def test_an_lstm_takes_two_states(hx: Any, layers: int, taken: list[Taken]) -> None:
    model = nn.LSTM(3, 4, layers)
    hx = hx[:layers] if isinstance(hx, Tensor) else type(hx)(state[:layers] for state in hx)
    with pytest.raises(Exception) as theirs:  # noqa: PT011 (PyTorch decides)
        model(x(5, 2, 3), hx)
    with pytest.raises(BppsaError, match=r"^<model> \(LSTM\): hx is a .*; give the tuple \(h0, c0\)") as ours:
        fast(model)(x(5, 2, 3), hx)
    assert isinstance(ours.value, theirs.type)
    assert str(theirs.value) in str(ours.value)
    assert not taken


def test_errors_from_elsewhere_stay_as_they_are() -> None:
    ours = fast(nn.GRU(3, 4, dtype=torch.float16))
    broken = torch.zeros(5, 2, 3, dtype=torch.float16).to_sparse()
    with pytest.raises((RuntimeError, NotImplementedError)) as error:
        ours(broken)
    assert not isinstance(error.value, BppsaError)
