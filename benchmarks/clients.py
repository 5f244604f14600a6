"""Models of packages that loop over time in Python, as the packages have them: for `loops.py` and for tests/clients."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn

FEATURES = 6
Inputs = Callable[[int, int], tuple[Any, ...]]  # of so many rows and steps


def batch_first(rows: int, steps: int) -> tuple[Any, ...]:
    return (torch.randn(rows, steps, FEATURES, requires_grad=True),)


@dataclass(frozen=True)
class Client:
    """make: of so many rows and so wide. needs: the package that it is of. scans: how many lines of loops it has.
    method: what its users call of it. is_double: whether it can be computed in float64."""

    needs: str
    make: Callable[[int, int], nn.Module]
    inputs: Inputs = batch_first
    scans: int = 1
    method: str = "__call__"
    is_double: bool = True

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.needs) is not None


def speech(name: str, **options: Any) -> Callable[[int, int], nn.Module]:
    """A layer of speechbrain's."""

    def make(rows: int, width: int) -> nn.Module:
        load_torchaudio()
        layers = importlib.import_module("speechbrain.nnet.RNN")
        made: nn.Module = getattr(layers, name)(width, input_shape=(rows, 1, FEATURES), **options)
        return made

    return make


def load_torchaudio() -> None:
    """Import it without what is compiled of it, where that was built for another device than torch: speechbrain imports
    it whole, and no layer calls it."""
    try:
        importlib.import_module("torchaudio")
    except OSError:
        without: Any = ModuleType("torchaudio._extension")
        without._IS_TORCHAUDIO_EXT_AVAILABLE = without._IS_ALIGN_AVAILABLE = False
        without.fail_if_no_align = lambda function: function
        sys.modules["torchaudio._extension"] = without
        importlib.import_module("torchaudio")


def liquid(name: str, *, wired: bool = False, **options: Any) -> Callable[[int, int], nn.Module]:
    """A layer of ncps's. wired: as many neurons are wired to each other at random, and two of them are read."""

    def make(rows: int, width: int) -> nn.Module:
        layers, wirings = importlib.import_module("ncps.torch"), importlib.import_module("ncps.wirings")
        units = wirings.AutoNCP(width, 2, seed=1) if wired else width
        made: nn.Module = getattr(layers, name)(FEATURES, units, **options)
        return made

    return make


def steps_first(rows: int, steps: int) -> tuple[Any, ...]:
    return (torch.randn(steps, rows, FEATURES, requires_grad=True),)


def with_times(width: int) -> Inputs:
    """And a state to begin with, and how much time passes."""

    def inputs(rows: int, steps: int) -> tuple[Any, ...]:
        state = torch.randn(rows, width, requires_grad=True)
        return *batch_first(rows, steps), state, 0.5 + torch.rand(rows, steps, width)

    return inputs


def policy(rows: int, width: int) -> nn.Module:
    """That of sb3-contrib's RecurrentPPO."""
    spaces = importlib.import_module("gymnasium.spaces")
    policies = importlib.import_module("sb3_contrib.ppo_recurrent.policies")
    observed, acted = (spaces.Box(-1.0, 1.0, (many,)) for many in (FEATURES, 2))
    made: nn.Module = policies.MlpLstmPolicy(observed, acted, lambda progress: 1e-3, lstm_hidden_size=width)
    return made


def episodes(width: int) -> Inputs:
    """Of which one begins within the first row's steps."""

    def inputs(rows: int, steps: int) -> tuple[Any, ...]:
        states = importlib.import_module("sb3_contrib.common.recurrent.type_aliases").RNNStates
        starts = torch.zeros(rows, steps)
        starts[:, 0] = starts[0, steps // 2] = 1.0
        before = [tuple(torch.randn(1, rows, width) for _ in "hc") for _ in range(2)]
        return torch.rand(rows * steps, FEATURES), torch.rand(rows * steps, 2), states(*before), starts.flatten()

    return inputs


class Spiking(nn.Module):
    """Two layers of neurons of a package in a loop, as its tutorials write it. reset: what puts them at rest; it is
    given the model."""

    def __init__(self, width: int, neuron: Callable[[], nn.Module], reset: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, width), neuron(), nn.Linear(width, 2), neuron())
        self.rest = reset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rest(self)
        spikes = []
        for t in range(x.shape[1]):
            spikes.append(self.layers(x[:, t]))
        return torch.stack(spikes, dim=1)


def leaky(rows: int, width: int) -> nn.Module:
    """Of snntorch's neurons."""
    snn, utils = importlib.import_module("snntorch"), importlib.import_module("snntorch.utils")
    return Spiking(width, lambda: snn.Leaky(beta=0.9, init_hidden=True), lambda net: utils.reset(net.layers))


def integrating(rows: int, width: int) -> nn.Module:
    """Of spikingjelly's."""
    package = "spikingjelly.activation_based"
    neuron, functional = (importlib.import_module(f"{package}.{name}") for name in ("neuron", "functional"))
    return Spiking(width, neuron.LIFNode, functional.reset_net)


class Adaptive(nn.Module):
    """norse's neurons hand their states on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        norse = importlib.import_module("norse.torch")
        self.into, self.neuron = nn.Linear(FEATURES, width), norse.LIFCell()
        self.out, self.readout = nn.Linear(width, 2), norse.LICell()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, read, voltages = None, None, []
        for t in range(x.shape[1]):
            spikes, state = self.neuron(self.into(x[:, t]), state)
            voltage, read = self.readout(self.out(spikes), read)
            voltages.append(voltage)
        return torch.stack(voltages, dim=1)


CLIENTS: Mapping[str, Client] = {
    "speechbrain LiGRU": Client("speechbrain", speech("LiGRU", dropout=0.2)),
    "speechbrain LiGRU, 2 layers, both ways": Client(
        "speechbrain", speech("LiGRU", num_layers=2, bidirectional=True, normalization="layernorm"), scans=2
    ),
    "speechbrain SLiGRU": Client("speechbrain", speech("SLiGRU", nonlinearity="tanh")),
    "speechbrain QuasiRNN": Client("speechbrain", speech("QuasiRNN", num_layers=2, bidirectional=True)),
    "ncps CfC": Client("ncps", liquid("CfC")),
    "ncps CfC, pure, of the last step": Client(
        "ncps", liquid("CfC", mode="pure", return_sequences=False, batch_first=False), steps_first
    ),
    "ncps CfC, wired, with a memory": Client("ncps", liquid("CfC", wired=True, mixed_memory=True, proj_size=3)),
    "ncps CfC, of uneven times": Client("ncps", liquid("CfC", mode="no_gate"), with_times(16)),
    "ncps LTC": Client("ncps", liquid("LTC")),
    "ncps LTC, wired": Client("ncps", liquid("LTC", wired=True), with_times(16)),
    "snntorch Leaky": Client("snntorch", leaky, is_double=False),
    "spikingjelly LIFNode": Client("spikingjelly", integrating),
    "norse LIFCell": Client("norse", lambda rows, width: Adaptive(width)),
    "sb3-contrib MlpLstmPolicy": Client("sb3_contrib", policy, episodes(16), 2, "evaluate_actions", is_double=False),
}
