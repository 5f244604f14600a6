"""What a recurrent module is, its weights aside: its sizes, its recurrences, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import nn

from bppsa.common.chain import Recurrence
from bppsa.frontend.planning.predict import counts_of
from bppsa.frontend.planning.sweeps import module_recurrence, structure_of
from bppsa.frontend.rnn.shapes import Shapes, shapes
from bppsa.plan.choose import multiply_inline
from bppsa.plan.work import Counts
from bppsa.runtime.recurrent.programs.stack import LONGEST, WIDEST


@dataclass(frozen=True)
class Spec:
    """What distinguishes one recurrent module from another, its weights aside. mode: as nn.RNNBase names it."""

    mode: str
    inputs: int
    hidden: int
    projection: int
    layers: int
    bias: bool
    bidirectional: bool

    @staticmethod
    def of(module: nn.RNNBase) -> Spec:
        sizes = (module.input_size, module.hidden_size, module.proj_size, module.num_layers)
        return known_spec(module.mode, *sizes, module.bias, module.bidirectional)

    @cached_property
    def shapes(self) -> Shapes:
        sizes = self.mode, self.inputs, self.hidden, self.layers, self.bias, self.bidirectional, self.projection
        return shapes(*sizes)

    @property
    def recurrence(self) -> Recurrence:
        """The recurrence of the first layer."""
        return self.recurrences[0]

    @property
    def recurrences(self) -> list[Recurrence]:
        """One for each layer."""
        return [module_recurrence(*sizes, self.bias) for sizes in self.sizes]

    @property
    def hidden_recurrences(self) -> list[Recurrence | None]:
        """For each layer the recurrence of the state which y does not show, an LSTM's c."""
        if self.states == 1:
            return [None] * self.layers
        return [module_recurrence(*sizes, self.bias, 1) for sizes in self.sizes]

    @property
    def sizes(self) -> list[tuple[str, int, int, int]]:
        """For each layer its mode, and the widths of its input, its state and its projection."""
        widths = [self.inputs, *[self.out * self.directions] * (self.layers - 1)]
        return [(self.mode, width, self.hidden, self.projection) for width in widths]

    def counts(self, dtype: torch.dtype, rows: int, device: str) -> list[Counts]:
        """Counts the work of every layer and direction. Half precision is computed in float32."""
        real = torch.float64 if dtype == torch.float64 else torch.float32
        how = real, multiply_inline(rows, device), device, self.peer(dtype, device)
        found = []
        for recurrence, hidden in zip(self.recurrences, self.hidden_recurrences, strict=True):
            counts = replace(counts_of(recurrence, *how), together=self.together(device))
            if hidden is not None and device == "cuda":
                counts = replace(counts, hidden=counts_of(hidden, *how, structure_of(hidden)))
            found += [counts] * self.directions
        return found

    def together(self, device: str) -> int:
        """Points up to which a call is a program, as far as sizes tell."""
        return LONGEST // (self.out * self.directions) if device == "cpu" and self.widest <= WIDEST else 0

    @property
    def widest(self) -> int:
        """The largest of all sizes of weights."""
        return max(map(max, self.shapes.weights))

    @property
    def fits_in_one(self) -> bool:
        """Whether cuDNN takes a layer's weights as they are, or as `frontend.rnn.by_pytorch.in_one` lays them out."""
        return self.bias or self.layers == 1

    @property
    def states(self) -> int:
        return 2 if self.mode == "LSTM" else 1

    @property
    def zeros(self) -> tuple[None, ...]:
        """What stands for states that are not given."""
        return (None,) * self.states

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of the states."""
        return (self.out, self.hidden)[: self.states]

    @property
    def directions(self) -> int:
        return 1 + self.bidirectional

    @property
    def weights(self) -> int:
        """How many weights one layer has in one direction."""
        return 2 + 2 * self.bias + bool(self.projection)

    def peer(self, dtype: torch.dtype, device: str) -> str:
        """Whose rates PyTorch has: on a CPU only float32 LSTMs without projection run fused, by oneDNN."""
        kind = self.mode.split("_")[0]
        fused = device != "cpu" or (dtype == torch.float32 and not self.projection)
        return "GRU" if kind == "LSTM" and not fused else kind

    @property
    def out(self) -> int:
        return self.projection or self.hidden


known_spec = lru_cache(maxsize=1024)(Spec)  # one for all modules that are alike
