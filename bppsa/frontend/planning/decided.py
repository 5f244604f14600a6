"""Plans that take for granted how Python decides by truth values, and how often that holds."""

from __future__ import annotations

from dataclasses import dataclass

from bppsa.errors import Reason, Unsupported

DECIDES = Reason(
    "reads truth values, and decides otherwise in this call than its plan takes for granted", mend="use torch.where"
)
TRIES = 3  # runs in vain that a plan is forgiven
SELDOM = 4  # one in so many may be in vain


class Missed(Unsupported):
    """A call decides otherwise than its plan. otherwise: numbers of the truth values that all its steps but the first
    have otherwise."""

    def __init__(self, otherwise: frozenset[int] = frozenset()) -> None:
        super().__init__(DECIDES)
        self.otherwise = otherwise


@dataclass
class Runs:
    """How often a plan was run, and how often in vain, the last time for these truth values."""

    calls: int = 0
    missed: int = 0
    otherwise: frozenset[int] = frozenset()

    @property
    def pay(self) -> bool:
        return self.missed < TRIES or self.missed * SELDOM <= self.calls

    def check(self) -> None:
        """Raises `Missed` where runs do not pay."""
        if not self.pay:
            raise Missed(self.otherwise)

    def count(self, as_decided: bool, otherwise: frozenset[int] = frozenset()) -> None:
        """Raises `Missed` where a run was in vain."""
        self.calls += 1
        if not as_decided:
            self.missed += 1
            self.otherwise = otherwise
            raise Missed(otherwise)
