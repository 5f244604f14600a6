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
    """A call decides otherwise than its plan."""

    def __init__(self) -> None:
        super().__init__(DECIDES)


@dataclass
class Runs:
    """How often a plan was run, and how often in vain."""

    calls: int = 0
    missed: int = 0

    @property
    def pay(self) -> bool:
        return self.missed < TRIES or self.missed * SELDOM <= self.calls

    def count(self, as_decided: bool) -> None:
        """Raises `Missed` where a run was in vain."""
        self.calls += 1
        if not as_decided:
            self.missed += 1
            raise Missed()
