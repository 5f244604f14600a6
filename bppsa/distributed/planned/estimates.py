"""From a traced step to stages: where the ops are cut, what each stage takes of time, memory and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from bppsa.distributed.planned.states import OptimizerState
from bppsa.distributed.planned.tracing import Amount, HeldParameter, OpTrace, StepTrace
from bppsa.errors import StrategyError
from bppsa.fxpasses.partition.cut.balance import balanced

StageTimes = Sequence[tuple[float, float, float]]


@dataclass(frozen=True)
class WorkerRates:
    """flops: a second. moved: bytes a second to and from a worker's memory, None where they count as free. sent: bytes
    a second between workers."""

    flops: float
    moved: float | None
    sent: float

    def ms(self, amount: Amount) -> float:
        """The milliseconds of an op: the longer of computing and moving."""
        flops, moved = amount
        return 1e3 * max(flops / self.flops, moved / self.moved if self.moved else 0.0)

    def sending(self, number: float) -> float:
        """ms for so many bytes."""
        return 1e3 * number / self.sent


class HeldBytes(NamedTuple):
    """What an owner holds for one Parameter, or for several."""

    weights: int
    gradients: int
    state: int  # of the optimizer


@dataclass(frozen=True)
class StageEstimate:
    """What one stage and micro-batch take; times in ms, sizes in bytes. held: of its Parameters, by storage: a weight
    that stages share is in each, and a worker that owns several holds it once. parameters, state: of those that no
    stage before it reads. received: its input; sent: its output."""

    forward: float
    backward: float
    weight: float
    flops: float
    activations: int
    received: int
    sent: int
    parameters: int
    state: int
    held: Mapping[int, HeldBytes]

    @property
    def weights(self) -> int:
        """Return the bytes of its Parameters."""
        return total(self.held).weights

    @property
    def gradients(self) -> int:
        """Return the bytes of its Parameters' gradients."""
        return total(self.held).gradients


def total(held: Mapping[int, HeldBytes]) -> HeldBytes:
    return HeldBytes(*map(sum, zip(HeldBytes(0, 0, 0), *held.values(), strict=True)))


def estimates(
    trace: StepTrace, stages: int, rates: WorkerRates, optimizer: OptimizerState, times: StageTimes | None
) -> list[StageEstimate]:
    """times: measured, (forward, backward, weight) in ms for each stage, in the place of what the rates give.

    Raises StrategyError where the ops are fewer than the stages.
    """
    if stages > len(trace.ops):
        raise StrategyError(f"the model's {len(trace.ops)} ops cannot be {stages} stages; take fewer workers")
    crossing = crossings(trace)
    ends = even_cut(trace, crossing, stages, rates)
    parts = [trace.ops[start:end] for start, end in pairwise([0, *ends])]
    reads = parameters_read(trace, parts)
    sizes = [trace.input, *(crossing[end - 1] for end in ends[:-1]), 0]
    found = []
    for s, part in enumerate(parts):
        held = {number: held_for(trace.parameters[number], optimizer) for number in sorted(reads[s])}
        first = reads[s].difference(*reads[:s])
        found.append(
            StageEstimate(
                *(times[s] if times else timed(part, rates)),
                flops=sum(op.forward[0] for op in part),
                activations=sum(trace.bytes[number] for number in set().union(*(op.saved for op in part))),
                received=sizes[s],
                sent=sizes[s + 1],
                parameters=sum(trace.parameters[number].elements for number in first),
                state=sum(held[number].state for number in first),
                held=held,
            )
        )
    return found


def held_for(one: HeldParameter, optimizer: OptimizerState) -> HeldBytes:
    """The bytes that are held for a Parameter: for a frozen one, only itself."""
    return HeldBytes(one.bytes, *((one.bytes, optimizer.bytes(one.elements, one.bytes)) if one.trained else (0, 0)))


def even_cut(trace: StepTrace, crossing: Sequence[int], stages: int, rates: WorkerRates) -> list[int]:
    """The ends of stages that take about equal time."""
    costs = [sum(timed([op], rates)) for op in trace.ops]
    least = 1e-9 * (sum(costs) or 1.0)  # so that ops that cost nothing are cut somewhere too
    return balanced([cost + least for cost in costs], crossing, stages)


def parameters_read(trace: StepTrace, parts: Sequence[Sequence[OpTrace]]) -> list[set[int]]:
    """The storages that each stage reads; one that several read is held by each. Those that no op reads are the first
    stage's."""
    found = [{number for op in part for number in op.reads if number in trace.parameters} for part in parts]
    found[0] |= trace.parameters.keys() - set().union(*found)
    return found


def timed(part: Sequence[OpTrace], rates: WorkerRates) -> tuple[float, float, float]:
    return (
        sum(rates.ms(op.forward) for op in part),
        sum(rates.ms(op.backward) for op in part),
        sum(rates.ms(op.weight) for op in part),
    )


def crossings(trace: StepTrace) -> list[int]:
    """The bytes that were made before each boundary between two ops, and are read behind it."""
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, op in enumerate(trace.ops):
        for number in op.reads:
            last[number] = i
        for number in op.writes - trace.parameters.keys():
            made.setdefault(number, i)
    change = [0] * (len(trace.ops) + 1)
    for number, begin in made.items():
        if last.get(number, begin) > begin and number in trace.bytes:
            change[begin] += trace.bytes[number]
            change[last[number]] -= trace.bytes[number]
    return list(accumulate(change[: len(trace.ops) - 1]))
