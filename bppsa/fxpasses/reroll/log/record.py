"""A log of the ops of one call: the call runs as PyTorch runs it, and each op is written down as it passes.

A dispatch mode sees ATen ops below autograd. A change in place is written down as the op that makes a new value. What
a log of ops cannot tell is a refusal: it is noted with the user's line, the call goes on, and nobody uses the log.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.cell.own_gradients import applying
from bppsa.fxpasses.recording.aliases import Geometry, marked_geometry
from bppsa.fxpasses.recording.decompose import ASKS_SIZES, is_seeded
from bppsa.fxpasses.recording.functional import VIEWS_IN_PLACE
from bppsa.fxpasses.recording.ops import CHECK, has_option, reads_values
from bppsa.fxpasses.recording.recorder import CHOOSE
from bppsa.fxpasses.reroll.log.in_place import ChangesInPlace, tensors_of
from bppsa.fxpasses.reroll.log.lines import goes_over, innermost, place, users_lines
from bppsa.fxpasses.reroll.log.memory import TensorMemory, is_unseen
from bppsa.fxpasses.reroll.log.number_inputs import NumberInputs, OpCall
from bppsa.fxpasses.reroll.log.numbers import Arithmetic
from bppsa.fxpasses.reroll.log.ops import CallInput, Like, Log, LoggedOp, LoggedValue, ReadTruth, flatten
from bppsa.fxpasses.reroll.log.own_gradients import OwnGradients
from bppsa.fxpasses.reroll.log.spelled import spelled
from bppsa.fxpasses.reroll.log.targets import OVERWRITES, POSTPONED, SIZED, sized, without_rows
from bppsa.fxpasses.theirs import theirs

aten = torch.ops.aten
FEW = 64  # elements of a literal
STEPS_READ = Reason(
    "the number of steps is read from a tensor", mend="write n = int(lens.max()) on a line before the loop"
)
MOST_OPS = 200_000


class Logger(TorchDispatchMode):
    """log: what has passed so far."""

    def __init__(self, arguments: Sequence[Tensor], arithmetic: Arithmetic | None = None) -> None:
        super().__init__()
        self.log, self.arguments = Log(), arguments
        self.memory = TensorMemory(self.emit)
        self.known: dict[Any, LoggedOp] = {}  # of what is made of captured tensors alone
        self.literals: dict[Any, LoggedValue] = {}
        self.lines: tuple[tuple[Any, int], ...] = ()
        self.outermost = sys._getframe(1).f_code
        self.enabled = torch.is_grad_enabled()
        self.gradients = self.enabled and any(tensor.requires_grad for tensor in arguments)  # or what is met later has
        self.own = OwnGradients(self)
        self.changes = ChangesInPlace(self)
        self.numbers = NumberInputs(arithmetic, self.append) if arithmetic is not None else None
        self.begun: set[int] = set()  # memory of what was made to require a gradient
        self.turned: Geometry | None = None  # how the tensor was seen that is about to become a view of itself
        with self.refusing():
            for i, tensor in enumerate(arguments):
                value = LoggedValue(tensor, given=CallInput(argument=i))
                value.constant = isinstance(tensor, nn.Parameter)  # as if the call had closed over it
                self.log.arguments.append(value)
                self.memory.put(tensor, value, None, False)
                self.memory.given[id(tensor)] = tensor, marked_geometry(tensor), value

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper torch would put around the method below imports all of Dynamo on its first call

    def refuse(self, reason: Reason, line: str = "") -> None:
        if self.log.refusal is None:
            self.log.refusal = Reason(reason.what, reason.op, reason.mend, line or place(self.lines))

    def may_begin(self, tensor: Tensor, wanted: bool = True) -> bool:
        """Whether the call may have a gradient end in this tensor, as cells do with the state that they begin with. One
        of its own is noted: nobody sees the gradient as long as the tensor stays within the call."""
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return wanted  # of a transform of torch.func's alone, which ends within the call
        given = any(tensor is argument for argument in self.arguments)  # what is held, its environment tells
        is_own = wanted and not tensor.requires_grad and not given
        if is_own:
            self.begun.add(tensor.untyped_storage()._cdata)
            self.memory.begun[id(tensor)] = tensor
        return is_own

    def is_own(self, tensor: Tensor) -> bool:
        """Whether the call itself has made it."""
        return self.memory.holds(tensor)

    def may_differentiate(self) -> bool:
        """Whether gradients that the call takes itself are ops as all others: no torch.autograd.Function has a part in
        them."""
        return not self.own.nodes

    def refusing(self) -> Refusing:
        return Refusing(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict | None = None) -> Any:
        profile: Any = sys.getprofile()
        sys.setprofile(None)  # who watches the call would watch the log too
        try:
            with self.refusing():
                self.end_functions(profile, (args, kwargs))
            return self.passing(func, args, kwargs or {})
        finally:
            sys.setprofile(profile)

    def end_functions(self, profile: Any = None, given: Any = ((), {})) -> None:
        """Where gradients are asked for again, the call is over, or what a function gives goes right into another."""
        if self.own.made and self.log.refusal is None and not applying():
            if torch.is_grad_enabled():
                self.own.end(profile)
            else:
                self.own.attach([x for x in tensors_of(*given) if any(x is made for made in self.own.made)], profile)

    def passing(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What the op gives, written down."""
        if func in ASKS_SIZES:
            return theirs(func, *args, **kwargs)
        self.lines = users_lines(self.outermost)
        leaves: list[Any] | None = None
        if self.log.refusal is None:
            with self.refusing():
                given, spec = flatten(args, kwargs)
                self.gradients = self.gradients or (self.enabled and any(map(has_gradient, given)))
                self.check(func, args)
                write = self.noting(func, args)
                unread = args[0] if write == self.wait or func in OVERWRITES else None
                leaves = [self.value_of(leaf, func, unread) if isinstance(leaf, Tensor) else leaf for leaf in given]
                if func in VIEWS_IN_PLACE:
                    self.turned = marked_geometry(args[0])
                apart = spelled(func, args)
        self.own.check_write(func, args)
        out = theirs(func, *args, **kwargs)
        self.own.note((args, kwargs), out)
        if self.log.refusal is not None or leaves is None:
            self.log.rest.append(LoggedOp(func, (), ((), ()), lines=self.lines))
            return out
        if reads_truth(func, args):
            self.log.truths.append(ReadTruth(leaves[0], out, self.lines))
            return out
        with self.refusing():
            if self.numbers is not None and self.numbers.arithmetic.handed:
                func, leaves, spec = self.numbers.read(OpCall(func, leaves, spec), self.number, out)
            if apart is None:
                write(func, args, kwargs, leaves, spec, out)
            else:
                self.spell(apart, out)
            if self.gradients and not torch.is_grad_enabled():
                self.own.passed(zip(given, leaves, strict=True), out)
        return out

    def noting(self, func: Any, args: Sequence[Any]) -> Callable[..., None]:
        """What writes the op down."""
        if func is aten._linalg_check_errors.default:
            return self.check_errors
        if func in VIEWS_IN_PLACE:
            return self.turn
        if func._schema.is_mutable:
            return self.changes.write
        return self.wait if self.may_wait(func, args) else self.note

    def check(self, func: Any, args: Sequence[Any]) -> None:
        if reads_values(func, args):
            self.log.branches = any(innermost(code, [line]) for code, line in self.lines)
            if self.log.branches and reads_truth(func, args) and not goes_over(self.lines):
                return
            if goes_over(self.lines):
                raise Unsupported(STEPS_READ)
            raise Unsupported("reads the value of a tensor", str(func), CHOOSE)
        if torch.is_autocast_enabled("cpu"):
            raise Unsupported("autocast decides dtypes op by op")
        if len(self.log.ops) > MOST_OPS:
            raise Unsupported(f"more than {MOST_OPS} ops in a call")

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

    def spell(self, apart: Callable[[], Sequence[Tensor]], outs: Sequence[Tensor]) -> None:
        """The ops that an op consists of are written down in its place; what nothing but its backward reads is not."""
        with self:
            made = apart()
        for tensor, alike in zip(outs, made, strict=False):
            value = self.memory.find(alike)
            assert value is not None
            self.memory.put(tensor, value, None, False)

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


def reads_truth(func: Any, args: Sequence[Any]) -> bool:
    return func is aten._local_scalar_dense.default and args[0].dtype is torch.bool


class Refusing(suppress):
    """What the log cannot hold is noted, not raised: the call is the user's."""

    def __init__(self, logger: Logger) -> None:
        super().__init__(Unsupported)
        self.logger = logger

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, Unsupported):
            self.logger.refuse(error.reason)
        return super().__exit__(kind, error, trace)


def has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
