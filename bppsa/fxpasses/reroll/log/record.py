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

from bppsa.common.leaves import wants_gradient
from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.cell.own_gradients import applying
from bppsa.fxpasses.recording.aliases import marked_geometry
from bppsa.fxpasses.recording.decompose import ASKS_SIZES, is_seeded
from bppsa.fxpasses.recording.functional import VIEWS_IN_PLACE
from bppsa.fxpasses.recording.ops import reads_values
from bppsa.fxpasses.recording.recorder import CHOOSE
from bppsa.fxpasses.reroll.log.in_place import ChangesInPlace, tensors_of
from bppsa.fxpasses.reroll.log.lines import goes_over, innermost, place, users_lines
from bppsa.fxpasses.reroll.log.number_inputs import NumberInputs, OpCall
from bppsa.fxpasses.reroll.log.numbers import Arithmetic
from bppsa.fxpasses.reroll.log.ops import CallInput, LoggedOp, LoggedValue, ReadTruth, flatten
from bppsa.fxpasses.reroll.log.own_gradients import OwnGradients
from bppsa.fxpasses.reroll.log.targets import OVERWRITES, spelled
from bppsa.fxpasses.reroll.log.writing import LogWriter
from bppsa.fxpasses.theirs import theirs

aten = torch.ops.aten
STEPS_READ = Reason(
    "the number of steps is read from a tensor", mend="write n = int(lens.max()) on a line before the loop"
)
DRAWN_ON_GPU = Reason("draws random numbers on a GPU", mend="draw them for all steps before the loop")
MOST_OPS = 200_000


class Logger(LogWriter, TorchDispatchMode):
    def __init__(self, arguments: Sequence[Tensor], arithmetic: Arithmetic | None = None) -> None:
        TorchDispatchMode.__init__(self)
        LogWriter.__init__(self, any(tensor.requires_grad for tensor in arguments))
        self.arguments = arguments
        self.outermost = sys._getframe(1).f_code
        self.own = OwnGradients(self)
        self.changes = ChangesInPlace(self)
        self.numbers = NumberInputs(arithmetic, self.append) if arithmetic is not None else None
        self.begun: set[int] = set()  # memory of what was made to require a gradient
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
                self.end_functions(profile, func, (args, kwargs))
            return self.passing(func, args, kwargs or {})
        finally:
            sys.setprofile(profile)

    def end_functions(self, profile: Any = None, func: Any = None, given: Any = ((), {})) -> None:
        """Where gradients are asked for again, the call is over, or what a function gives goes right into another."""
        if self.own.made and self.log.refusal is None and not applying(func):
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
                self.gradients = self.gradients or (self.enabled and any(map(wants_gradient, given)))
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
            if is_seeded(func) and any(tensor.is_cuda for tensor in tensors_of((out,), {})):
                raise Unsupported(DRAWN_ON_GPU)
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

    def spell(self, apart: Callable[[], Sequence[Tensor]], outs: Sequence[Tensor]) -> None:
        """The ops that an op consists of are written down in its place; what nothing but its backward reads is not."""
        with self:
            made = apart()
        for tensor, alike in zip(outs, made, strict=False):
            value = self.memory.find(alike)
            assert value is not None
            self.memory.put(tensor, value, None, False)


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
