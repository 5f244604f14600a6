"""One step of a loop as a function of its carry, what it is given, and what is the same in all steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from bppsa.fxpasses.reroll.log.ops import LoggedOp, LoggedValue, unflatten
from bppsa.fxpasses.theirs import theirs


class OperandSource(NamedTuple):
    """Where a step finds an operand: "carry", "given" or "same" and which of them, or "made" by an op, and its item."""

    place: str
    number: int
    item: int = 0


def has_no_gradient(value: Tensor) -> bool:
    """Whether its dtype has no gradients. Such a value need not be detached, which would be to read it: nobody reads
    the pivots of a matrix."""
    return not (value.is_floating_point() or value.is_complex())


@dataclass(frozen=True)
class Body:
    """ops: each with its number, and its leaves, sources in the place of values. carries, given, same: values of those
    shapes and dtypes; of `given` those of all steps, [T, ...]. rows: how many a value has; None where it is one."""

    ops: tuple[tuple[int, LoggedOp, tuple[Any, ...]], ...]
    carries: tuple[LoggedValue, ...]
    given: tuple[LoggedValue, ...]
    same: tuple[LoggedValue, ...]
    nexts: tuple[OperandSource, ...]
    outputs: tuple[OperandSource, ...]
    rows: int | None

    def __call__(
        self,
        carry: Sequence[Tensor],
        given: Sequence[Tensor],
        same: Sequence[Tensor],
        before: Callable[[LoggedOp], None] | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """before: called with each op that is about to run."""
        read: dict[str, Any] = {"carry": carry, "given": given, "same": same}
        made: dict[tuple[int, int], Tensor] = {}

        def find(source: Any) -> Any:
            if not isinstance(source, OperandSource):
                return source
            if source.place == "made":
                return made[source.number, source.item]
            return read[source.place][source.number]

        for number, op, leaves in self.ops:
            if before is not None:
                before(op)
            args, kwargs = unflatten([find(leaf) for leaf in leaves], op.spec)
            out = theirs(op.target, *args, **kwargs)
            outs = [out] if op.single else out
            for item, value in enumerate(outs):
                made[number, item] = value if op.grad or has_no_gradient(value) else value.detach()
        return [find(source) for source in self.nexts], [find(source) for source in self.outputs]
