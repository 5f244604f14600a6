"""Rates from measured calls: the least relative error, and where calls say little, near those of a known machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bppsa.plan.cost import Machine, Phase, Rates

Term = tuple[str, str]  # of a machine's rates: the name of a phase, and of one of its Rates
TRUST = 0.02  # in the known machine, beside a measured call's 1
FAR = 0.15  # relative error at which a call counts half: another process may have been in its way
ROUNDS, SWEEPS = 8, 60  # of weighing calls anew, and over all terms in each


@dataclass(frozen=True)
class Measured:
    """A call: what it comes to, and the microseconds that it took."""

    phases: Sequence[Phase]
    us: float


def fitted(known: Machine, calls: Sequence[Measured], name: str, source: str, margin: float) -> Machine:
    """`known` with every rate that `calls` tell of times a factor: least squares of relative errors, by turns in one
    factor at a time, none of them negative. Rates of 0 stay what they are."""
    rows = [{t: us / call.us for t, us in terms(known, call.phases)} for call in calls]
    factors = dict.fromkeys((t for row in rows for t in row), 1.0)
    members = {t: [(i, row[t]) for i, row in enumerate(rows) if t in row] for t in factors}
    for _ in range(ROUNDS):
        predicted = [sum(factors[t] * part for t, part in row.items()) for row in rows]
        weights = [1 / (1 + ((p - 1) / FAR) ** 2) for p in predicted]
        for _ in range(SWEEPS):
            for t, parts in members.items():
                pull = TRUST * (1 - factors[t]) - sum(weights[i] * part * (predicted[i] - 1) for i, part in parts)
                step = pull / (TRUST + sum(weights[i] * part * part for i, part in parts))
                step = max(step, -factors[t])
                factors[t] += step
                for i, part in parts:
                    predicted[i] += step * part
    rates = {phase: scaled(rates, phase, factors) for phase, rates in known.rates.items()}
    return replace(known, name=name, source=source, margin=margin, rates=rates)


def terms(machine: Machine, phases: Iterable[Phase]) -> list[tuple[Term, float]]:
    """Microseconds of a call by phase and rate; a name that comes twice counts once."""
    found: dict[Term, float] = {}
    for name, work in phases:
        for part, us in machine.parts(name, work).items():
            if us > 0:
                found[name, part] = found.get((name, part), 0.0) + us
    return list(found.items())


def scaled(rates: Rates, phase: str, factors: dict[Term, float]) -> Rates:
    parts = {
        part: getattr(rates, part) * factors.get((phase, part), 1.0) for part in ("launch", "step", "flops", "bytes")
    }
    return replace(rates, **{part: float(f"{value:.3g}") for part, value in parts.items()})
