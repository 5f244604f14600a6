"""Gradients that a torch.autograd.Function of the user's gives in the place of those of its ops, as spikes have them.

A recording or a log shows such a function's forward alone, without gradients. Right after it its backward is run, once,
for a gradient of ones: where all it does with that gradient is to multiply it, entry by entry, the product is the
derivative, and an op of ours gives it to what the forward has made. Any other backward is refused, and one that may
have effects is not run.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, NoneType
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes

from bppsa.common.chain import FILLS
from bppsa.errors import Unsupported
from bppsa.fxpasses.environment.harmless import is_harmless, is_numeric
from bppsa.fxpasses.lines import OURS
from bppsa.fxpasses.recording.aliases import RETURN_NEW
from bppsa.fxpasses.recording.multiples import MEND, SAME, multiples, no_product
from bppsa.fxpasses.recording.ops import is_made_anew
from bppsa.fxpasses.recording.recorder import Recorder
from bppsa.fxpasses.recording.refused import NoEscape
from bppsa.fxpasses.theirs import is_ours, theirs
from bppsa.sparsity.rules.own_gradient import ATTACHED, has_own_gradient

aten = torch.ops.aten
_apply: Any = torch.autograd.Function.apply
APPLY = getattr(
    getattr(_apply, "__func__", None), "__code__", None
)  # None where it is no Python, as from torch 2.14 on
UP_TO_SIGN = {*SAME, aten.detach.default}  # ops that give their operand, or the negative of it


def applying(func: Any = None) -> bool:
    """Whether an op comes from within `Function.apply`, which saves what the backward reads last of all. Where that has
    no frame it is told by what saves: a detach, which needs no gradient of the function's if it is the user's."""
    if APPLY is None:
        return func is aten.detach.default
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(str(OURS)):
        frame = frame.f_back
    return frame is not None and frame.f_code is APPLY


def check_function(node: Any, result: Tensor) -> None:
    """Raises Unsupported where the backward of an ended function may not be run for a gradient of ones."""
    if result._is_view() or len(node._input_metadata) != 1:
        raise refusal(node, "has a gradient of its own")
    if not (is_harmless(backward_of(type(node)._forward_cls), set()) and all(map(is_numeric, vars(node).values()))):
        raise refusal(node, "has a gradient of its own that may have effects")


def backward_of(function: type[torch.autograd.Function]) -> Any:
    """What autograd runs: either of the two may be given."""
    given: Any = function.vjp if function.vjp is not torch.autograd.Function.vjp else function.backward
    return given


def slopes_of(node: Any, ones: Tensor) -> list[Any]:
    """What the backward gives for a gradient of ones, one for each of `edges_of(node)`. Raises Unsupported where it
    raises."""
    try:
        slopes = theirs(node.apply, ones)
    except Unsupported:
        raise
    except Exception as error:  # whatever the user's code raises here is of their backward
        if is_ours(error):
            raise
        raise refusal(node, f"has a gradient of its own that raises {error!r}") from error
    given = slopes if isinstance(slopes, tuple) else (slopes,)
    if len(given) < len(node.needs_input_grad) or not all(isinstance(s, (Tensor, NoneType)) for s in given):
        raise refusal(node, "has a gradient of its own that is no tensor for each argument")  # an error
    return [slope for slope, needed in zip(given, node.needs_input_grad, strict=False) if needed]


def edges_of(node: Any) -> list[tuple[Any, int]]:
    """Where the arguments of a function come from that have a gradient. A backward gives something for each argument,
    autograd has no edge for one that is no tensor."""
    return [edge for edge in node.next_functions if edge[0] is not None]


@contextmanager
def without_draws(node: Any) -> Iterator[None]:
    """Leaves random numbers as they are, for a backward that is run within. Raises Unsupported where it draws some, or
    sets a seed."""
    with _disable_current_modes():
        before = torch.get_rng_state()
    try:
        yield
    finally:
        with _disable_current_modes():
            drawn = not torch.equal(before, torch.get_rng_state())
            torch.set_rng_state(before)
    if drawn:
        raise refusal(node, "has a gradient of its own that draws random numbers")


def refusal(node: Any, what: str) -> Unsupported:
    return Unsupported(what, op=node.name(), mend=MEND)


def keeping_for(recorder: weakref.ref[SlopeRecorder]) -> Callable[[Tensor], Tensor | None]:
    """The hook by which autograd saves what a backward will read: an object that nobody else has, at the same place in
    memory. What autograd holds must not keep the recorder alive."""

    def kept(saved: Tensor) -> Tensor | None:
        known = recorder()
        if known is None:
            return None
        with _disable_current_modes():
            own = saved.detach()
        known.saved[id(own)] = own, known.aliases.find(own)
        return own

    return kept


class SlopeRecorder(Recorder):
    """Records a function with the derivatives that torch.autograd.Functions within it give, as ops. hooks: whether what
    autograd saves is kept by hooks, without which there may be no such Functions."""

    def __init__(self, hooks: bool = True) -> None:
        super().__init__()
        self.hooks = hooks
        self.keeps = keeping_for(weakref.ref(self))
        self.has_others = False  # whether an op ran under hooks of the user's, as within a checkpoint
        self.made: list[Tensor] = []  # without gradients, since an op had some
        self.read: dict[Any, fx.Node] = {}  # by what is made without them; by where autograd knows it from
        self.saved: dict[int, tuple[Tensor, Any]] = {}  # by autograd, for backwards, and what stood for it then
        self.literals: dict[fx.Node, Tensor] = {}  # numbers that Python has made tensors of just now
        self.running = False  # whether a backward is

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict | None = None) -> Any:
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True) if self.hooks else None
        self.has_others = self.has_others or (hooks is not None and hooks[0] is not self.keeps)
        if func is aten.detach.default and id(args[0]) in self.saved:
            return self.taken_out(args[0])
        if torch.is_grad_enabled() and not applying(func):
            self.end_functions()  # before what comes next can change what a backward reads
        if func is aten.lift_fresh.default:
            self.literals[self.node_of(args[0])] = args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)

    @property
    def keeping(self) -> Callable[[Tensor], Tensor | None] | None:
        return self.keeps if self.hooks else None

    def taken_out(self, saved: Tensor) -> Tensor:
        """What autograd has saved, with its gradient. Under hooks it does not see that it was changed in place."""
        if self.aliases.find(saved) is not self.saved[id(saved)][1]:
            raise Unsupported("changes in place what a backward reads", "aten.detach", RETURN_NEW)
        with _disable_current_modes():
            return saved.detach()

    def held(self, tensor: Tensor) -> Tensor:
        if self.gradients and not torch.is_grad_enabled() and tensor.requires_grad and not applying():
            if any(tensor is made for made in self.made):
                self.attach(tensor)  # what one function gives goes right into another
            self.read[tensor.grad_fn or tensor, tensor.output_nr] = self.node_of(tensor)
        return super().held(tensor)

    def define_output(self, node: fx.Node, out: Tensor) -> Tensor:
        out = super().define_output(node, out)
        if self.gradients and not torch.is_grad_enabled():
            if self.running:
                raise Unsupported("has a gradient that has none itself", str(node.target), MEND)
            if not is_made_anew(node):  # held by somebody, torch.zeros would return a detached one instead
                self.made.append(out)
        return out

    def change_in_place(self, func: Any, args: Sequence[Any], kwargs: dict) -> Any:
        changed = super().change_in_place(func, args, kwargs)
        if self.gradients and not torch.is_grad_enabled():
            self.made.append(changed)
        return changed

    def end_functions(self) -> None:
        made, self.made = self.made, []
        for tensor in made:
            self.attach(tensor)

    def attach(self, tensor: Tensor) -> None:
        """Gives a value the derivative of the function that has made it, where one has."""
        node: Any = tensor.grad_fn
        if not has_own_gradient(node) or node in self.attached:
            return
        self.attached.add(node)
        value, inputs = self.node_of(tensor), [self.input_of(node, *edge) for edge in edges_of(node)]
        if value in inputs:
            raise refusal(node, "has a gradient of its own")
        check_function(node, tensor)
        if not self.hooks:
            raise refusal(node, "has a gradient of its own, beside derivatives of torch.func")
        before = len(self.graph.nodes)
        ones, slopes = self.run(node, tensor)
        ops = [(n.target, n.args, (n,)) for n in list(self.graph.nodes)[before:] if n.target not in FILLS]
        if any(value in arguments for _, arguments, _ in ops):
            raise refusal(node, "has a gradient of its own that reads its result")
        linear, line = multiples(ones, ops, self.is_zero), value.meta.get("line", "")
        for x, slope in zip(inputs, slopes, strict=False):
            if slope is None:
                continue
            factor = self.node_of(slope)
            if factor not in linear or any(kind(s.meta["val"]) != kind(tensor) for s in (x, factor)):
                raise no_product(node.name())
            value = self.define(self.graph.call_function(ATTACHED, (value, x, factor)), tensor)
            value.meta.update(path=self.where(), line=line)

    def input_of(self, node: Any, source: Any, number: int) -> fx.Node:
        known = self.read.get((getattr(source, "variable", source), number))
        if known is None:
            raise refusal(node, "has a gradient of its own by what its forward does not read")
        return known

    def is_zero(self, argument: Any) -> bool:
        while isinstance(argument, fx.Node) and argument.target in UP_TO_SIGN:
            argument = argument.args[0]
        if not isinstance(argument, fx.Node):
            return bool(argument == 0)
        if argument in self.literals:
            return not self.literals[argument].any()
        return argument.target in FILLS and FILLS[argument.target](argument.args) == 0

    def run(self, node: Any, like: Tensor) -> tuple[fx.Node, list[Any]]:
        """What stands for ones, and what the backward gives for them."""
        self.running = True
        try:
            with without_draws(node), torch.enable_grad(), NoEscape(self, {}), self:
                ones = torch.ones_like(like)
                return self.node_of(ones), slopes_of(node, ones)
        finally:
            self.running = False


def kind(tensor: Any) -> Any:
    return tensor.shape, tensor.dtype
