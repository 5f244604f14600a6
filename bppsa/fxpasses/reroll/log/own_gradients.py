"""Gradients of torch.autograd.Functions in a log of ops: a function has ended where autograd knows its result."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from bppsa.common.graph import tensors_in
from bppsa.errors import Unsupported
from bppsa.fxpasses.cell.own_gradients import check_function, edges_of, kind, refusal, slopes_of, without_draws
from bppsa.fxpasses.recording.multiples import MEND, SAME, multiples, no_product
from bppsa.fxpasses.reroll.log.memory import function_of
from bppsa.fxpasses.reroll.log.ops import LoggedOp, LoggedValue, unflatten
from bppsa.sparsity.rules.own_gradient import ATTACHED

if TYPE_CHECKING:
    from bppsa.fxpasses.reroll.log.record import Logger

aten = torch.ops.aten
UP_TO_SIGN = {*SAME, aten.detach.default, aten.lift_fresh.default}


class OwnGradients:
    """Writes into the log of one call the gradients that functions of the user's have of their own. nodes: the
    functions whose gradients are in the log."""

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
        self.made += tensors_in(outs)

    def end(self, profile: Any) -> None:
        made, self.made = self.made, []
        self.attach(made, profile)
        self.read.clear()

    def attach(self, tensors: Iterable[Tensor], profile: Any) -> None:
        """Looks whether a function has ended whose result is among the tensors. profile: what watches the user's
        code."""
        for tensor in tensors:
            node = function_of(tensor)
            if not isinstance(node, BackwardCFunction) or node in self.nodes:
                continue
            self.nodes.add(node)
            if is_of_op(node):
                self.of_op(tensor, node)
            else:
                self.take(tensor, node, profile)

    def of_op(self, tensor: Tensor, node: Any) -> None:
        """A result of an op with a backward of its own, which stands in the log as if it were without gradients."""
        value = self.logger.memory.find(tensor)
        made_by: Any = None if value is None else value.op
        if made_by is None or made_by.target.namespace == "aten":
            raise refusal(node, "has a gradient of its own")
        made_by.grad = True

    def take(self, tensor: Tensor, node: Any, profile: Any) -> None:
        log, value = self.logger.log, self.logger.memory.find(tensor)
        inputs = [self.input_of(*edge) for edge in edges_of(node)]
        check_function(node, tensor)
        if value is None or value in inputs:
            raise refusal(node, "has a gradient of its own")
        begin, lines = len(log.ops), () if value.op is None else value.op.lines
        ones, slopes = self.run(node, tensor, profile)
        made = log.ops[begin:]
        if any(value in op.operands for op in made):
            raise refusal(node, "has a gradient of its own that reads its result")
        if not all(op.grad for op in made):
            raise refusal(node, "has a gradient that has none itself")
        linear = multiples(ones, [(op.target, unflatten(op.leaves, op.spec)[0], op.outs) for op in made], is_zero)
        for x, slope in zip(inputs, slopes, strict=False):
            if slope is None:
                continue
            factor = self.logger.value_of(slope, ATTACHED, None)
            if factor is None or factor not in linear or any(kind(s) != kind(tensor) for s in (x, factor)):
                raise no_product(node.name())
            op = LoggedOp(ATTACHED, [value, x, factor], ((None,) * 3, ()), True).gives(tensor)
            log.ops.append(op)
            (value,) = op.outs
        for op in log.ops[begin:]:
            op.lines = lines  # of the function's last op: what comes next is another one after the last step
        self.logger.memory.write(tensor, value, node.name())

    def input_of(self, node: Any, number: int) -> LoggedValue:
        known = self.read.get((getattr(node, "variable", node), number))
        if known is None:
            raise refusal(node, "has a gradient of its own by what its forward does not read")
        return known

    def run(self, node: Any, like: Tensor, profile: Any) -> tuple[LoggedValue, list[Any]]:
        """What the backward gives for ones, and these."""
        self.inside = set()
        try:
            with without_draws(node), torch.enable_grad(), self.logger:
                ones = torch.ones_like(like)
                sys.setprofile(profile)
                try:
                    slopes = slopes_of(node, ones)
                finally:
                    sys.setprofile(None)
        finally:
            self.inside = None
        known = self.logger.memory.find(ones)
        assert known is not None
        return known, slopes

    def check_write(self, func: Any, args: Sequence[Any]) -> None:
        """Stops a backward of ours before it writes into what the call holds."""
        if self.inside is None or not func._schema.is_mutable:
            return
        if not {one.untyped_storage()._cdata for one in args[:1] if isinstance(one, Tensor)} <= self.inside:
            raise Unsupported("has a gradient of its own that changes a tensor in place", str(func), MEND)

    def note(self, args: Any, outs: Any) -> None:
        """An op of a backward that runs now: what it makes is its own."""
        if self.inside is not None:
            given, made = ({leaf.untyped_storage()._cdata for leaf in tensors_in(leaves)} for leaves in (args, outs))
            self.inside |= made - given


def is_of_op(node: Any) -> bool:
    """Whether torch.library has made the function: what calls its op again has the gradient."""
    return bool(node._forward_cls.__module__ == "torch._library.autograd")


def is_zero(leaf: Any) -> bool:
    while isinstance(leaf, LoggedValue) and leaf.op is not None and leaf.op.target in UP_TO_SIGN:
        leaf = leaf.op.leaves[0]
    if isinstance(leaf, LoggedValue) and leaf.given is not None:
        return leaf.given.literal is not None and not leaf.given.literal.any()
    if isinstance(leaf, LoggedValue):
        return leaf.op is not None and leaf.op.target is aten.zeros.default
    return leaf == 0
