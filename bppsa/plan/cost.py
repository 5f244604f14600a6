"""How long a call of a recurrence takes, predicted: a sum of five terms, fitted to measured calls.

What decides is the quotient of two predictions, in which most of a machine's speed cancels. The defaults were fitted to
534 calls (T 1 to 1000, B 1 to 64, H 8 to 512; float32) on two cores of an AMD EPYC with AVX-512 and torch 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Size:
    """Of one layer and direction. gates: columns of the recurrent product over H; inputs: columns of x."""

    steps: int
    rows: int
    hidden: int
    inputs: int
    gates: int

    @property
    def points(self) -> int:
        """Pointwise work: gates of all units, rows and steps."""
        return self.steps * self.rows * self.gates * self.hidden

    @property
    def products(self) -> int:
        """Floating-point operations of x @ W_ih and h @ W_hh; a backward has twice as many."""
        return 2 * self.points * (self.inputs + self.hidden)

    @property
    def weights(self) -> int:
        return self.gates * self.hidden * (self.inputs + self.hidden)


@dataclass(frozen=True)
class Rates:
    """Microseconds: for a call, for a step, for a thousand points, a million products, a thousand weights."""

    call: float
    step: float
    points: float
    products: float
    weights: float

    def us(self, layers: Sequence[Size]) -> float:
        return sum(
            self.call
            + self.step * size.steps
            + self.points * size.points / 1e3
            + self.products * size.products / 1e6
            + self.weights * size.weights / 1e3
            for size in layers
        )


@dataclass(frozen=True)
class Machine:
    """Rates of (inference, training). PyTorch's depend on the module: a fused LSTM, or ops dispatched in every step."""

    sequential: tuple[Rates, Rates] = (Rates(108, 0.15, 0.38, 5.6, 0.54), Rates(414, 0.34, 3.7, 15.6, 1.24))
    pytorch: dict[str, tuple[Rates, Rates]] = field(
        default_factory=lambda: {
            "LSTM": (Rates(102, 3.3, 1.25, 4.8, 0.6), Rates(367, 2.95, 8.4, 10.6, 2.56)),
            "GRU": (Rates(35, 13.5, 3.8, 7.5, 0.11), Rates(141, 104, 13.0, 21.0, 0.32)),
            "RNN": (Rates(32, 5.0, 7.1, 4.1, 0.15), Rates(147, 35, 16.2, 14.9, 0.32)),
        }
    )
