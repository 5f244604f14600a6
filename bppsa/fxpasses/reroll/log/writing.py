"""Ops and values as a log holds them: what is constant, a view, or written down once somebody reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa.errors import Unsupported
from bppsa.fxpasses.recording.aliases import Geometry, marked_geometry
from bppsa.fxpasses.recording.decompose import is_seeded
from bppsa.fxpasses.recording.functional import VIEWS_IN_PLACE
from bppsa.fxpasses.recording.ops import CHECK, has_option
from bppsa.fxpasses.reroll.log.in_place import tensors_of
from bppsa.fxpasses.reroll.log.memory import TensorMemory, is_unseen
from bppsa.fxpasses.reroll.log.ops import CallInput, Like, Log, LoggedOp, LoggedValue
from bppsa.fxpasses.reroll.log.targets import POSTPONED, SIZED, sized, without_rows

aten = torch.ops.aten
FEW = 64  # elements of a literal


class LogWriter:
    """Writes down what passes. log: so far. lines: of the op that passes. gradients: whether the call has met any."""

    def __init__(self, gradients: bool) -> None:
        self.log = Log()
        self.memory = TensorMemory(self.emit)
        self.known: dict[Any, LoggedOp] = {}  # of what is made of captured tensors alone
        self.literals: dict[Any, LoggedValue] = {}
        self.lines: tuple[tuple[Any, int], ...] = ()
        self.enabled = torch.is_grad_enabled()
        self.gradients = self.enabled and gradients
        self.turned: Geometry | None = None  # how the tensor was seen that is about to become a view of itself

    def value_of(self, tensor: Tensor, func: Any, unread: Tensor | None) -> LoggedValue | None:
        if tensor is unread:
            return None
        value = self.memory.find(tensor)
        if value is None:
            value = self.literal(tensor) if func is aten.lift_fresh.default else self.captured(tensor)
            self.memory.put(tensor, value, None, False)
        return value

    def captured(self, tensor: Tensor) -> LoggedValue:
        value = LoggedValue(tensor, given=CallInput(captured=tensor))
        value.constant = True
        self.log.captured.append(value)
        return value

    def literal(self, tensor: Tensor) -> LoggedValue:
        """Equal ones are one: a step makes its own of the same numbers."""
        few = tensor.is_cpu and tensor.numel() <= FEW
        key = (tensor.dtype, tensor.shape, tensor.view(-1).view(torch.uint8).numpy().tobytes()) if few else None
        if key in self.literals:
            return self.literals[key]
        value = LoggedValue(tensor, given=CallInput(literal=tensor.clone()))
        self.log.literals.append(value)
        if few:
            self.literals[key] = value
        return value

    def number(self, term: int, dtype: torch.dtype) -> LoggedValue:
        value = LoggedValue(Like(torch.Size(), dtype), given=CallInput(number=term))
        self.log.numbers.append(value)
        return value

    def note(self, func: Any, args: Any, kwargs: Any, leaves: list[Any], spec: Any, out: Any) -> None:
        outs, single = ([out], True) if isinstance(out, Tensor) else (out, False)
        if not isinstance(outs, (list, tuple)) or not all(isinstance(each, Tensor) for each in outs):
            raise Unsupported("gives no tensors", op=str(func))
        func, leaves, spec = without_rows(func, leaves, spec)
        if func in SIZED and out.is_contiguous():  # others keep the order of what they are like
            func, leaves, spec = sized(func, leaves, out)
        given = {tensor.untyped_storage()._cdata: tensor for tensor in tensors_of(args, kwargs)}
        views = [self.view_of(given.get(tensor.untyped_storage()._cdata), func) for tensor in outs]
        if func is aten.detach.default and views == [(marked_geometry(out), False)]:
            return  # it had no gradient
        op = self.constant(func, leaves, spec, outs, single) or self.append(func, leaves, spec, outs, single)
        for tensor, value, (source, detached) in zip(outs, op.outs, views, strict=True):
            self.memory.put(tensor, value, source, detached)

    def view_of(self, source: Tensor | None, func: Any) -> tuple[Geometry | None, bool]:
        """What `TensorMemory.put` is told of a view of `source`."""
        if source is None:
            return None, False
        seen = torch.is_grad_enabled()
        if seen and is_unseen(source):
            raise Unsupported("views what was viewed without gradients", op=str(func), mend="detach it")
        cut = source.requires_grad and (func is aten.detach.default or not seen)
        return marked_geometry(source), cut or self.memory.is_detached(source)

    def may_wait(self, func: Any, args: Sequence[Any]) -> bool:
        """Whether it is a view that is written down when it is read: it may be there to be written to."""
        if func not in POSTPONED or not self.memory.holds(args[0]) or self.memory.is_detached(args[0]):
            return False
        return torch.is_grad_enabled() is self.gradients or not args[0].requires_grad

    def wait(self, func: Any, args: Any, kwargs: Any, leaves: list[Any], spec: Any, out: Tensor) -> None:
        self.memory.postpone(out, args[0], LoggedOp(func, [None, *leaves[1:]], spec, True, self.lines))

    def tells_gradients(self) -> bool:
        """Whether an op is done with gradients; as long as a call has met none this is no difference."""
        return torch.is_grad_enabled() or not self.gradients

    def turn(self, func: Any, args: Any, kwargs: Any, leaves: list[Any], spec: Any, out: Tensor) -> None:
        """A view that a tensor becomes in place."""
        assert self.turned is not None
        op = self.append(VIEWS_IN_PLACE[func], leaves, spec, [out])
        self.memory.put(out, op.outs[0], self.turned, not op.grad)

    def constant(
        self, func: Any, leaves: list[Any], spec: Any, outs: Sequence[Tensor], single: bool
    ) -> LoggedOp | None:
        """The op, done once for all times, where it is made of constants alone."""
        values = [leaf for leaf in leaves if isinstance(leaf, LoggedValue)]
        seeded = is_seeded(func)
        if not values or seeded or is_spread(func, outs) or not all(value.constant for value in values):
            return None
        grad = self.tells_gradients()
        key = (func, spec, grad, *((type(leaf), leaf) for leaf in leaves))
        op = self.known.get(key)
        if op is None:
            op = self.known[key] = LoggedOp(func, leaves, spec, grad, self.lines).gives(*outs, single=single)
            for value in op.outs:
                value.constant = True
            self.log.prologue.append(op)
        return op

    def check_errors(self, func: Any, args: Any, kwargs: Any, leaves: list[Any], spec: Any, out: Any) -> None:
        """The op that tells what this op looks at raises its errors itself, when the log is run again."""
        made = leaves[0].op
        if made is None or not has_option(made.target, CHECK):
            raise Unsupported("fails for some values of a tensor", op=str(func))
        positional, named = made.spec
        if CHECK not in dict(named):
            made.spec, made.leaves = (positional, (*named, (CHECK, None))), [*made.leaves, True]
        self.log.raises = True

    def append(self, func: Any, leaves: list[Any], spec: Any, outs: Sequence[Any], single: bool = True) -> LoggedOp:
        op = LoggedOp(func, leaves, spec, self.tells_gradients(), self.lines).gives(*outs, single=single)
        self.log.ops.append(op)
        return op

    def emit(self, target: Any, leaves: Sequence[Any], described: Any) -> LoggedValue:
        """An op that the call has not done: it makes of values what it has done in place."""
        spec, like = described
        op = LoggedOp(target, list(leaves), spec, True, self.lines).gives(like)
        self.log.ops.append(op)
        return op.outs[0]


def is_spread(func: Any, outs: Sequence[Any]) -> bool:
    """Whether it repeats a matrix for each row, as a product with one does; a step shows that they are one."""
    return func is aten.expand.default and len(outs[0].shape) > 2
