"""Which strategy runs a recurrence, and why."""

from __future__ import annotations

STRATEGIES = ("auto", "sequential")
