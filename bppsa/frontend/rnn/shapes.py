"""The sizes and weights that a recurrent module's attributes promise. L layers, D directions, H hidden, I input."""

from __future__ import annotations

import functools
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

_GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "GRU": 3, "LSTM": 4}


class Shapes(NamedTuple):
    """Describes the states and weights of a module."""

    rows: int  # of each state: L * D
    widths: tuple[int, ...]  # of each state
    weights: tuple[tuple[int, ...], ...]  # in PyTorch's flat order


@functools.lru_cache(maxsize=1024)
def shapes(
    mode: str, inputs: int, hidden: int, layers: int, bias: bool, bidirectional: bool, projection: int
) -> Shapes:
    gates, out, directions = _GATES[mode] * hidden, projection or hidden, 1 + bidirectional
    weights: list[tuple[int, ...]] = []
    for layer in range(layers):
        weight_ih, weight_hh = (gates, out * directions if layer else inputs), (gates, out)
        biases = [(gates,), (gates,)] if bias else []
        weight_hr = [(out, hidden)] if projection else []
        weights += [weight_ih, weight_hh, *biases, *weight_hr] * directions
    return Shapes(layers * directions, (out, hidden) if mode == "LSTM" else (out,), tuple(weights))


def shapes_of(m: nn.RNNBase) -> Shapes:
    return shapes(m.mode, m.input_size, m.hidden_size, m.num_layers, m.bias, m.bidirectional, m.proj_size)


def weights_of(module: nn.RNNBase) -> list[Tensor]:
    """PyTorch's flat weights, brought up to date.

    Weights may have been replaced without the module's notice (functional_call, parametrizations). PyTorch's own test
    for that costs 5 us a call, through weak references and attribute look-ups; in the common case this one costs 0.5.
    Parametrized weights are computed as often as PyTorch's test computes them: a spectral norm takes a step each time.
    """
    parameters, flat = module._parameters, module._flat_weights
    for name, weight in zip(module._flat_weights_names, flat, strict=False):
        if parameters.get(name) is not weight:
            if is_parametrized(module):
                module._update_flat_weights()
            elif module._weights_have_changed():  # else somebody has put others into PyTorch's list
                module._init_flat_weights()
            break
    return module._flat_weights  # type: ignore[return-value]
