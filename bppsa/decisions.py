"""What was decided for each part of a model and why: the objects that `explain` prints and tests compare."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

RECORD = "_bppsa"  # the one name that is ours in a user's module, of a record of what was asked of it and found out


@dataclass(frozen=True)
class Decision:
    """One part of a model: where it is, what it is, which strategy runs it, and the reason, with the cost model's
    numbers."""

    path: str  # module path, e.g. "encoder.gru"
    kind: str  # "gru", "lstm", "scan", ...
    strategy: str  # "sequential", ..., "pytorch" where it is left as it was, or "waiting" for its first call
    reason: str
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)  # T, B, H, predicted milliseconds, ...
    predicted: Mapping[str, float] = field(default_factory=dict)  # milliseconds by strategy, where they were asked for
    machine: str = ""  # whose rates predicted, and where they are from
    forward: str = "sequential"  # of what is not left to PyTorch, or "newton" with its options
    details: tuple[str, ...] = ()  # a line each: the parts of what it is
    speedup: float | None = None  # how many times as fast as PyTorch's it is predicted to be, with what is around it

    @property
    def times_as_fast(self) -> float | None:
        """How many times as fast as PyTorch's this part is predicted to be; None where nobody predicted it."""
        if self.speedup is not None:
            return self.speedup
        ours = self.numbers.get("predicted ms", self.predicted.get(self.strategy))
        theirs = self.numbers.get("PyTorch's", self.predicted.get("pytorch"))
        if isinstance(ours, (int, float)) and isinstance(theirs, (int, float)) and ours:
            return theirs / ours
        return None

    def __str__(self) -> str:
        numbers = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.numbers.items())
        what = "; ".join(part for part in (self.kind, numbers) if part)
        line = f"{self.path or '<model>'} ({what}): {self.strategy}: {self.reason}{self.predictions}"
        return "\n    ".join((line, *self.details))

    @property
    def predictions(self) -> str:
        """A line of its own, or nothing."""
        if not self.predicted:
            return ""
        times = ", ".join(f"{name} {ms:.3g}" for name, ms in sorted(self.predicted.items(), key=lambda item: item[1]))
        return f"\n    predicted ms: {times} ({self.machine})"


@dataclass(frozen=True)
class Report:
    """All decisions of one call, in the order in which the parts ran; before the first call, all that was found.

    It is text when printed; `decisions` holds the same as objects.
    """

    taken: Sequence[Decision] = ()
    note: str = ""  # what to know besides

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Return what was decided for each part."""
        return tuple(self.taken)

    def __str__(self) -> str:
        told = Counter(map(str, self.decisions))
        lines = [self.note, *(line if times == 1 else f"{line} ({times} times)" for line, times in told.items())]
        return "\n".join(filter(None, lines)) or "nothing to rewrite: the model runs as PyTorch runs it"


@functools.lru_cache(maxsize=1024)
def warn_once(text: str) -> None:
    """What is worth one warning a process, unless very many others came after it."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def warn_without_kernels(error: Exception) -> None:
    """One line for all parts of a model that cannot be built for the same reason; reports name each."""
    warn_once(f"bppsa leaves to PyTorch what it has no kernel for: {error}")


def under(path: str, name: str) -> str:
    """The path of what is called so within what has this path, "" for a root."""
    return f"{path}.{name}" if path else name
