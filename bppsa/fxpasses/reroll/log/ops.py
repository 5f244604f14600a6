"""What a log consists of: ops, and the values that they read and make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bppsa.errors import Reason
from bppsa.fxpasses.recording.decompose import is_seeded

aten = torch.ops.aten
Nesting = tuple  # how leaves were nested: None for a leaf, a tuple for a list of them


class Like(NamedTuple):
    shape: Sequence[int]
    dtype: torch.dtype


class LoggedValue:
    """One tensor of a call. op: what made it, its output `item`; None for what was given: `given` says what."""

    __slots__ = ("constant", "dtype", "given", "item", "op", "shape")

    def __init__(
        self, tensor: Tensor | Like, op: LoggedOp | None = None, item: int = 0, given: CallInput | None = None
    ) -> None:
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.op, self.item, self.given = op, item, given
        self.constant = False  # made of what the call closes over, by ops alone that give the same whenever they run


@dataclass(frozen=True, eq=False)
class CallInput:
    """An argument by its place among those of the call, a tensor that the call closes over, one that it made of
    numbers, or a followed number by the place of its term."""

    argument: int = -1
    captured: Tensor | None = None
    literal: Tensor | None = None
    number: int = -1


class LoggedOp:
    """One call of `target`. grad: whether autograd saw it. lines: (code, line) of the user's frames, innermost first.
    single: whether it gives one tensor rather than a list."""

    __slots__ = ("at", "grad", "leaves", "lines", "outs", "single", "spec", "target")

    def __init__(
        self,
        target: Callable[..., Any],
        leaves: Sequence[Any],
        spec: Nesting,
        grad: bool = True,
        lines: Sequence[tuple[Any, int]] = (),
    ) -> None:
        self.target, self.leaves, self.spec, self.grad, self.lines = target, leaves, spec, grad, lines
        self.outs: tuple[LoggedValue, ...] = ()
        self.single = True
        self.at = -1  # its place in the log

    @property
    def operands(self) -> Iterator[LoggedValue]:
        return (leaf for leaf in self.leaves if isinstance(leaf, LoggedValue))

    def leaves_with(self, find: Callable[[LoggedValue], Any]) -> list[Any]:
        """The leaves, with what `find` gives in the place of each operand."""
        return [find(leaf) if isinstance(leaf, LoggedValue) else leaf for leaf in self.leaves]

    def call(self, values: Mapping[LoggedValue, Any]) -> tuple[list[Any], dict[str, Any]]:
        """What the target is given for these operands."""
        return unflatten(self.leaves_with(values.__getitem__), self.spec)

    def put(self, stands: Mapping[LoggedValue, LoggedValue]) -> None:
        """Reads other operands in the place of some."""
        self.leaves = self.leaves_with(lambda leaf: stands.get(leaf, leaf))

    def join(self, parts: Sequence[LoggedValue], dim: int) -> None:
        """Becomes a cat of these."""
        self.target, self.leaves, self.spec = aten.cat.default, [*parts, dim], stack_spec(len(parts))

    def as_it_is(self) -> LoggedOp:
        """The op with the same values, which does not change when a pass changes this one."""
        same = LoggedOp(self.target, tuple(self.leaves), self.spec, self.grad, self.lines)
        same.outs, same.single = self.outs, self.single
        return same

    def gives(self, *likes: Any, single: bool = True) -> LoggedOp:
        self.outs, self.single = tuple(LoggedValue(like, self, i) for i, like in enumerate(likes)), single
        return self


class ReadTruth(NamedTuple):
    """A truth value [] that Python has read, what it was, and the lines of who read it."""

    value: LoggedValue
    holds: bool
    lines: Sequence[tuple[Any, int]]


@dataclass
class Log:
    """prologue: what is made of captured tensors alone. refusal: the first thing it did that ops cannot tell; branches:
    it is that a loop reads a value, by which its steps may differ."""

    ops: list[LoggedOp] = field(default_factory=list)
    prologue: list[LoggedOp] = field(default_factory=list)
    captured: list[LoggedValue] = field(default_factory=list)
    literals: list[LoggedValue] = field(default_factory=list)
    arguments: list[LoggedValue] = field(default_factory=list)
    numbers: list[LoggedValue] = field(default_factory=list)
    refusal: Reason | None = None
    branches: bool = False
    raises: bool = False  # whether an op raises errors for some matrices
    truths: list[ReadTruth] = field(default_factory=list)  # by which the steps of a loop may differ
    rest: list[LoggedOp] = field(default_factory=list)  # since the refusal, without their operands


def flatten(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], Nesting]:
    leaves: list[Any] = []

    def walk(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return tuple([walk(each) for each in value])
        leaves.append(value)
        return None

    positional = tuple([walk(value) for value in args])
    return leaves, (positional, tuple([(name, walk(value)) for name, value in kwargs.items()]))


def unflatten(leaves: Sequence[Any], spec: Nesting) -> tuple[list[Any], dict[str, Any]]:
    each = iter(leaves)

    def build(part: Any) -> Any:
        return next(each) if part is None else [build(inner) for inner in part]

    positional, named = spec
    return [build(part) for part in positional], {name: build(part) for name, part in named}


def stack_spec(count: int) -> Nesting:
    """Returns the nesting of torch.stack's arguments: a list of so many tensors, and a dimension."""
    return ((None,) * count, None), ()


def is_number(leaf: Any) -> bool:
    return isinstance(leaf, (int, float)) and not isinstance(leaf, bool)


def draws(op: LoggedOp) -> bool:
    return is_seeded(op.target)
