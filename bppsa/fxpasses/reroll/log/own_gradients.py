"""Gradients that a torch.autograd.Function of the user's gives in the place of those of its ops, as spikes have them.

A log of ops shows such a function's forward alone, without gradients. Right after it its backward is run, once, for a
gradient of ones: where all it does with that gradient is to multiply it, entry by entry, the product is the derivative,
and an op of ours gives it to what the forward has made. Any other backward is refused, and one that may have effects
is not run.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Iterable, Sequence
from types import FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.utils._pytree import tree_leaves

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.environment import trail
from bppsa.fxpasses.environment.key import SIMPLE
from bppsa.fxpasses.environment.names import codes, global_names
from bppsa.fxpasses.lines import OURS
from bppsa.fxpasses.reroll.log.memory import function_of
from bppsa.fxpasses.reroll.log.ops import LoggedOp, LoggedValue
from bppsa.fxpasses.reroll.log.unseen import BUILTINS, CONTAINERS
from bppsa.fxpasses.theirs import is_ours, theirs
from bppsa.sparsity.rules.own_gradient import ATTACHED

if TYPE_CHECKING:
    from bppsa.fxpasses.reroll.log.record import Logger

aten = torch.ops.aten
_apply: Any = torch.autograd.Function.apply
APPLY = _apply.__func__.__code__
MEND = "use detach() and torch ops"
STORES = {"STORE_GLOBAL", "STORE_NAME", "STORE_ATTR", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_ATTR", "IMPORT_NAME"}
SAME = {aten.clone.default, aten.alias.default, aten.neg.default}
# Linear in any of the first two operands, or in both together, or in the first.
PRODUCTS = {aten.mul.Tensor, aten.mul.Scalar}
SUMS = {aten.add.Tensor, aten.sub.Tensor}
QUOTIENTS = {aten.div.Tensor, aten.div.Scalar}
CHOICES: dict[Any, tuple[int, int]] = {  # which operand is chosen where the gradient passes, and where it is zero
    aten.where.ScalarOther: (1, 2),
    aten.where.ScalarSelf: (2, 1),
    aten.where.self: (1, 2),
    aten.masked_fill.Scalar: (0, 2),
}


class OwnGradients:
    """Of one logged call. nodes: the functions whose gradients are in the log."""

    def __init__(self, logger: Logger) -> None:
        self.logger = logger
        self.nodes: set[Any] = set()
        self.made: list[Tensor] = []  # without gradients, since an op had some
        self.inside: set[int] | None = None  # memory that the backward which runs now has made
        self.read: dict[Any, LoggedValue] = {}  # by what is made without them; by where autograd knows it from

    def passed(self, given: Iterable[tuple[Any, Any]], outs: Any) -> None:
        """An op without gradients. given: tensors, and what stands for them in the log."""
        for tensor, value in given:
            if isinstance(value, LoggedValue) and tensor.requires_grad:
                self.read[function_of(tensor) or tensor, tensor.output_nr] = value
        self.made += [out for out in tree_leaves(outs) if isinstance(out, Tensor)]

    def attach(self, profile: Any = None) -> None:
        """Looks whether a function has ended. profile: what watches the user's code."""
        made, self.made = self.made, []
        for tensor in made:
            node = function_of(tensor)
            if isinstance(node, BackwardCFunction) and node not in self.nodes:
                self.nodes.add(node)
                self.take(tensor, node, profile)
        self.read.clear()

    def take(self, tensor: Tensor, node: Any, profile: Any) -> None:
        log, value = self.logger.log, self.logger.memory.find(tensor)
        inputs = [self.input_of(*edge) for edge in node.next_functions]
        if tensor._is_view() or len(node._input_metadata) != 1 or value is None or value in inputs:
            raise self.refusal(node, "has a gradient of its own")
        if not (is_harmless(backward_of(type(node)._forward_cls), set()) and all(map(is_plain, vars(node).values()))):
            raise self.refusal(node, "has a gradient of its own that may have effects")
        begin, lines = len(log.ops), () if value.op is None else value.op.lines
        ones, slopes = self.run(node, tensor, profile)
        made = log.ops[begin:]
        if any(value in op.operands for op in made):
            raise self.refusal(node, "has a gradient of its own that reads its result")
        if not all(op.grad for op in made):
            raise self.refusal(node, "has a gradient that has none itself")
        linear = multiples(ones, made)
        for x, slope in zip(inputs, slopes, strict=False):
            if x is None or slope is None:
                continue
            factor = self.logger.value_of(slope, ATTACHED, None)
            if factor not in linear or any(s.shape != tensor.shape or s.dtype != tensor.dtype for s in (x, factor)):
                raise self.refusal(node, "has a gradient of its own that is no product with that of its result")
            op = LoggedOp(ATTACHED, [value, x, factor], ((None,) * 3, ()), True).gives(tensor)
            log.ops.append(op)
            (value,) = op.outs
        for op in log.ops[begin:]:
            op.lines = lines  # of the function's last op: what comes next is another one after the last step
        self.logger.memory.write(tensor, value, node.name())

    def input_of(self, node: Any, number: int) -> LoggedValue | None:
        """None for what has no gradient."""
        if node is None:
            return None
        known = self.read.get((getattr(node, "variable", node), number))
        if known is None:
            raise self.refusal(node, "has a gradient of its own by what its forward does not read")
        return known

    def run(self, node: Any, like: Tensor, profile: Any) -> tuple[LoggedValue, Sequence[Any]]:
        """What the backward gives for ones, and these."""
        before, self.inside = torch.get_rng_state(), set()
        try:
            with torch.enable_grad(), self.logger:
                ones = torch.ones_like(like)
                sys.setprofile(profile)
                slopes = theirs(node.apply, ones)
        except Unsupported:
            raise
        except Exception as error:  # whatever the user's code raises here belongs into his backward
            if is_ours(error):
                raise
            raise self.refusal(node, f"has a gradient of its own that raises {error!r}") from error
        finally:
            sys.setprofile(None)
            self.inside = None
            drawn = not torch.equal(before, torch.get_rng_state())
            torch.set_rng_state(before)
        if drawn:
            raise self.refusal(node, "has a gradient of its own that draws random numbers")
        known = self.logger.memory.find(ones)
        assert known is not None
        return known, slopes if isinstance(slopes, tuple) else (slopes,)

    def check_write(self, func: Any, args: Sequence[Any]) -> None:
        """Stops a backward of ours before it writes into what the call holds."""
        if self.inside is None or not func._schema.is_mutable:
            return
        if not {one.untyped_storage()._cdata for one in args[:1] if isinstance(one, Tensor)} <= self.inside:
            raise Unsupported(Reason("has a gradient of its own that changes a tensor in place", str(func), MEND))

    def note(self, args: Any, outs: Any) -> None:
        """An op of a backward that runs now: what it makes is its own."""
        if self.inside is not None:
            given, made = (
                {leaf.untyped_storage()._cdata for leaf in tree_leaves(leaves) if isinstance(leaf, Tensor)}
                for leaves in (args, outs)
            )
            self.inside |= made - given

    def refusal(self, node: Any, what: str) -> Unsupported:
        return Unsupported(Reason(what, op=node.name(), mend=MEND))


def applying() -> bool:
    """Whether an op comes from within `Function.apply`, which saves what the backward reads last of all."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(str(OURS)):
        frame = frame.f_back
    return frame is not None and frame.f_code is APPLY


def backward_of(function: type[torch.autograd.Function]) -> Any:
    """What autograd runs: either of the two may be given."""
    given: Any = function.vjp if function.vjp is not torch.autograd.Function.vjp else function.backward
    return given


def is_harmless(function: Any, known: set[Any]) -> bool:
    """Whether its code handles nothing but numbers, tensors and functions of these."""
    if not isinstance(function, FunctionType):
        return False
    if function in known:
        return True
    known.add(function)
    instructions = [i for inner in codes(function.__code__) for i in dis.get_instructions(inner)]
    if any(instruction.opname in STORES for instruction in instructions):
        return False
    names = {**vars(builtins), **function.__globals__}
    cells = [held for held in map(trail.content, function.__closure__ or ()) if held is not trail.MISSING]
    read = [*cells, *(names[name] for name in global_names(function.__code__) if name in names)]
    return all(is_plain(value) or is_function(value) or is_harmless(value, known) for value in read)


def is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return isinstance(value, (*SIMPLE, Tensor)) and not isinstance(value, nn.Parameter)


def is_function(value: Any) -> bool:
    """Of Python's own or of torch's, or a module or class of such."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in ("torch", "math")
    if any(value is known for known in (*BUILTINS, *CONTAINERS)):
        return True
    return callable(value) and str(getattr(value, "__module__", "")).partition(".")[0] in ("torch", "math", "_operator")


def multiples(ones: LoggedValue, ops: Sequence[LoggedOp]) -> set[LoggedValue]:
    """The values that are `ones` times something which does not depend on it, entry by entry. Raises Unsupported where
    an op makes anything else of it."""
    found = {ones}
    for op in ops:
        if not any(operand in found for operand in op.operands):
            continue
        if not is_linear(op, found) or any(out.shape != ones.shape for out in op.outs):
            raise Unsupported(
                Reason("has a gradient of its own that is no product with that of its result", str(op.target), MEND)
            )
        found |= set(op.outs)
    return found


def is_linear(op: LoggedOp, multiples: set[LoggedValue]) -> bool:
    by = [leaf for leaf in op.leaves[:3] if isinstance(leaf, LoggedValue) and leaf in multiples]
    if op.target in SAME:
        return True
    if op.target in PRODUCTS:
        return len(by) == 1
    if op.target in QUOTIENTS:
        return len(by) == 1 and op.leaves[0] in multiples
    if op.target in SUMS:
        return len(by) == 2
    if op.target in CHOICES:
        passes, zero = CHOICES[op.target]
        return op.leaves[passes] in multiples and (op.leaves[zero] in multiples or is_zero(op.leaves[zero]))
    return False


def is_zero(leaf: Any) -> bool:
    while isinstance(leaf, LoggedValue) and leaf.op is not None and leaf.op.target in {*SAME, aten.detach.default}:
        leaf = leaf.op.leaves[0]
    if isinstance(leaf, LoggedValue):
        return leaf.op is not None and leaf.op.target is aten.zeros.default
    return leaf == 0
