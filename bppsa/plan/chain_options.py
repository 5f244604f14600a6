"""What `bppsa.compile` was asked for, of feed-forward chains."""

from __future__ import annotations

from dataclasses import dataclass

from bppsa.plan.strategy import Strategy


@dataclass(frozen=True)
class ChainOptions:
    """What `bppsa.compile` was asked for. budget: bytes that J^Ts formed in a backward may take, None for a quarter of
    what the machine has; strict: a stage without a rule is an error."""

    strategy: Strategy
    strict: bool = False
    budget: int | None = None
