"""The mode under which a function is recorded: what the dispatcher does becomes nodes, run on stand-ins."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from bppsa.common.graph import tensors_in
from bppsa.errors import Unsupported
from bppsa.fxpasses.lines import place_here
from bppsa.fxpasses.recording.aliases import RETURN_NEW, STALE, Aliases, Stale, geometry
from bppsa.fxpasses.recording.decompose import ASKS_SIZES, DECOMPOSE, OF_REALS, is_seeded, parts_of_backward
from bppsa.fxpasses.recording.functional import VIEWS_IN_PLACE, functional
from bppsa.fxpasses.recording.ops import CHECK, has_option, is_made_anew, makes_memory, reads_values
from bppsa.fxpasses.recording.parts import PARTS
from bppsa.fxpasses.recording.row_elements import SPELLED, is_numbering, made_by, may_be_elements, numbers_rows
from bppsa.fxpasses.recording.stand_ins import seen_apart, tried, zeros_like
from bppsa.fxpasses.theirs import theirs
from bppsa.sparsity.rules.own_gradient import ATTACHED, has_own_gradient

aten = torch.ops.aten
OURS = "bppsa"  # of whose ops none is taken apart
TRACING = torch._C._TorchDispatchModeKey.PROXY  # make_fx's, which would see what is done here to find out what an op is
# Views that only mark the numbers they show, and what makes such numbers.
LAZY: dict[Any, Any] = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}
CHOOSE = "use torch.where; what is only logged, read after all steps"
BY_NUMBERS = "index by numbers, mask.nonzero().squeeze(1) of a mask from before the loop, or use torch.where"
ASKS = "asks whether a tensor has a gradient, which may be otherwise in another step"
DRAW_OUTSIDE = (
    "draw them outside and pass them in, or call model.eval() if they are a dropout's; a class may be drawn as the "
    "argmax of logits plus Gumbel noise, as F.gumbel_softmax does"
)


def nothing_of(saved: Tensor) -> None:
    """Keeps nothing of what autograd saves."""


def with_tensors(value: Any, replace: Callable[[Tensor], Any]) -> Any:
    """An op's arguments with something in the place of every tensor: torch's own map of trees takes as long as all else
    that is done for an op."""
    if isinstance(value, Tensor):
        return replace(value)
    if isinstance(value, dict):
        return {key: with_tensors(item, replace) for key, item in value.items()}
    return [with_tensors(item, replace) for item in value] if isinstance(value, (list, tuple)) else value


def is_complex(args: Any) -> bool:
    return any(leaf.is_complex() for leaf in tensors_in(args))


class Recorder(TorchDispatchMode):
    """Sees every op that the dispatcher does, runs it on stand-ins and writes it down as a node."""

    may_draw = False  # random numbers
    draws: Mapping[Any, Any] = {}  # what draws in place, and what returns such numbers

    def __init__(self, decompose: Mapping[Any, Callable[..., Any]] = DECOMPOSE, where: Callable[[], str] = str) -> None:
        super().__init__()
        self.decompose, self.where = decompose, where
        self.graph = fx.Graph()
        self.aliases = Aliases()
        self.captured: list[tuple[Tensor, fx.Node]] = []
        self.line = place_here  # the user's, of the op that is written down
        self.own_gradients: dict[Any, str] = {}  # of functions of the user's, and their lines
        self.attached = set[Any]()  # those of them whose derivatives are recorded
        self.gradients = True  # whether grad mode is on but for what the function itself turns off

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper torch would put around the method below imports all of Dynamo on its first call

    def placeholder(self, stand_in: Tensor) -> fx.Node:
        return self.define(self.graph.placeholder(f"arg{len(self.graph.nodes)}"), stand_in)

    def watched(self, value: Tensor, node: fx.Node) -> Tensor:
        """The placeholder's stand-in as the function gets it: autograd tells what becomes of it."""
        if not (value.is_floating_point() or value.is_complex()):
            return value
        with _disable_current_modes(), torch.enable_grad():
            value = value.clone().requires_grad_().clone()  # a leaf may not be changed in place
        self.aliases.put(value, node)
        return value

    def define(self, node: fx.Node, value: Tensor) -> fx.Node:
        value = seen_apart(value) if is_made_anew(node) else value
        node.meta["val"] = value
        self.aliases.put(value, node)
        return node

    def node_of(self, tensor: Tensor) -> fx.Node:
        """The node that computed `tensor`; a tensor met for the first time is one the function closed over."""
        found = self.aliases.find(tensor)
        if isinstance(found, Stale):
            raise Unsupported(STALE, found.by, "return a new tensor, as torch.cat does", found.line)
        if found is None:
            found = self.placeholder(zeros_like(tensor))
            self.aliases.close_over(tensor, found)
            self.captured.append((tensor, found))
        return found

    def is_recorded(self, tensor: Tensor) -> bool:
        """Whether it stands for what the function computes or is given, rather than for what it closes over."""
        return torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor in self.aliases

    def asked(self, name: str, truth: Any) -> Any:
        """What the function hears that asks what autograd knows of a stand-in. Raises `Unsupported`."""
        raise Unsupported(ASKS, op=name, mend="leave it to autograd, or pass a bool", path=place_here())

    def held(self, tensor: Tensor) -> Tensor:
        """What an op runs on: the very tensor that the function holds, so that views are views of it; for one that it
        closes over a stand-in."""
        node = self.node_of(tensor)
        self.note_gradient(tensor)
        return tensor if tensor in self.aliases else node.meta["val"]

    @property
    def keeping(self) -> Callable[[Tensor], Tensor | None] | None:
        """What is kept of what autograd saves of a stand-in: nothing, as no backward will read it. Whoever does that
        may not know the recorder, which would be alive as long as what it has recorded. None: autograd keeps it all."""
        return nothing_of

    def end_functions(self) -> None:
        """Where functions with a gradient of their own may have ended: this recorder sees their forward alone."""

    def note_gradient(self, leaf: Any) -> None:
        """Where a function with a gradient of its own has ended, whose result this is."""
        if isinstance(leaf, Tensor) and has_own_gradient(leaf.grad_fn):
            self.own_gradients.setdefault(leaf.grad_fn, self.node_of(leaf).meta.get("line", ""))

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(TRACING) is not None:
            raise Unsupported("is traced within, as by torch.func.linearize", str(func), "use torch.func.jvp")
        if reads_values(func, args):
            raise Unsupported(
                "reads the value of a tensor", str(func), BY_NUMBERS if func is aten.index.Tensor else CHOOSE
            )
        if is_seeded(func) and not self.may_draw:
            raise Unsupported("draws random numbers", str(func), DRAW_OUTSIDE, self.where())
        if func is aten._linalg_check_errors.default:
            return self.check_errors(args[0])
        if func in ASKS_SIZES:
            return func(*args)
        if func._schema.is_mutable:
            return self.change_in_place(func, args, kwargs)
        if func in LAZY:
            return self.resolved(func, *args)
        if func is aten.lift_fresh.default and args[0].dim():  # numbers of Python's, which may be written over
            with self:
                return args[0].clone()
        if func in SPELLED and self.is_of_rows(*args[:2]):
            with self:
                return SPELLED[func](*args)
        parts = self.decompose.get(func) or parts_of_backward(func)
        if parts is not None and not (func in OF_REALS and is_complex(args)):
            with self:
                return theirs(parts, *args, **kwargs)
        if func.namespace != OURS:
            with self:
                result = theirs(func.decompose, *args, **kwargs)  # of an op that is nothing but a composition of others
            if result is not NotImplemented:
                return result
        return self.write_down(func, args, kwargs)

    def is_of_rows(self, x: Tensor, indices: Sequence[Any]) -> bool:
        """Whether x is indexed by the numbers of its rows, and by lists more."""
        if not may_be_elements(x, indices):
            return False
        node = self.node_of(indices[0])
        made = made_by(node)
        return numbers_rows(made.target, made.args, len(x)) or is_numbering(node, len(x))

    def resolved(self, func: Any, tensor: Tensor) -> Tensor:
        """What stands for a view whose numbers are to be conjugated or negated when they are read."""
        with self:
            result = theirs(LAZY[func], tensor)
        self.aliases.may_share("changes in place what may share memory with its conjugate", tensor, result)
        return result

    def write_down(self, func: Any, args: Sequence[Any], kwargs: dict) -> Any:
        """Run the op on stand-ins, and add a node for it."""
        stand_ins, options = tuple(with_tensors(args, self.held)), with_tensors(kwargs, self.held)
        args, kwargs = tuple(with_tensors(args, self.node_of)), with_tensors(kwargs, self.node_of)
        if has_option(func, "device"):
            options = {**options, "device": "cpu"}
        out = tried(func, stand_ins, options)
        node = self.graph.call_function(func, args, kwargs)
        node.meta["path"], node.meta["line"] = self.where(), self.line()
        if isinstance(out, Tensor):
            is_new = func in PARTS and out not in self.aliases
            defined = self.define_output(node, out)
            if is_new and defined is out:  # no copy, as under no_grad
                self.aliases.put_part(out, PARTS[func](*stand_ins))
            return defined
        if not isinstance(out, (tuple, list)) or not all(isinstance(value, Tensor) for value in out):
            raise Unsupported("gives no tensors", op=str(func))
        node.meta["val"] = out
        items = [self.graph.call_function(operator.getitem, (node, i)) for i in range(len(out))]
        for item in items:
            item.meta["path"], item.meta["line"] = node.meta["path"], node.meta["line"]
        return [self.define_output(item, value) for item, value in zip(items, out, strict=True)]

    def check_errors(self, info: Tensor) -> None:
        """From here on the op that tells `info` raises its errors itself."""
        made = self.node_of(info).args[:1]
        if not made or not has_option(made[0].target, CHECK):
            raise Unsupported("fails for some values of a tensor", op="aten._linalg_check_errors")
        made[0].kwargs = {**made[0].kwargs, CHECK: True}

    def change_in_place(self, func: Any, args: Sequence[Any], kwargs: dict) -> Any:
        """Record x.add_(y) as x.add(y), and let x stand for the result from here on."""
        changed, name = args[0] if args else None, str(func)
        if func in VIEWS_IN_PLACE and isinstance(changed, Tensor) and self.node_of(changed).op != "placeholder":
            return self.turn(func, changed, args, kwargs)
        op = self.draws.get(func) or functional(func)
        unusual = not func._opname.endswith("_") or op is None or torch.Tag.inplace_view in func.tags
        if unusual or not isinstance(changed, Tensor):
            raise Unsupported("changes a tensor in place", op=name, mend=RETURN_NEW)
        if changed.requires_grad and self.gradients and not torch.is_grad_enabled():
            what = "changes a tensor in place and keeps its gradient, under no_grad"
            raise Unsupported(what, op=name, mend=RETURN_NEW)
        others = tensors_in((args[1:], kwargs))
        self.aliases.check_writable(changed, others, name)
        with self:
            result = theirs(op, *args, **kwargs)
        if (result.shape, result.dtype) != (changed.shape, changed.dtype):
            raise Unsupported("gives another shape or dtype than what it changes in place", name, RETURN_NEW)
        with self:
            new, wholes = result, list[tuple[Tensor, fx.Node]]()
            for part in self.aliases.wholes(changed):
                new = part.replaced(new)
                wholes.append((part.whole, self.node_of(new)))
        self.aliases.change(changed, self.node_of(result), name, self.line())
        for whole, node in wholes:
            self.aliases.nodes[geometry(whole)] = node
        changed.copy_(result)  # an index is in bounds on stand-ins too
        return changed

    def turn(self, func: Any, changed: Tensor, args: Sequence[Any], kwargs: dict) -> Tensor:
        """What changes only how a tensor looks at its memory."""
        with self:
            result = theirs(VIEWS_IN_PLACE[func], *args, **kwargs)
        node, as_it_was = self.node_of(result), changed.detach()
        for known in self.graph.nodes:  # whatever it stood for before it was changed in place
            if known.meta.get("val") is changed:
                known.meta["val"] = as_it_was
        func(*args, **kwargs)
        self.aliases.put(changed, node)
        return changed

    def define_output(self, node: fx.Node, out: Tensor) -> Tensor:
        """Notes what an op gives, and returns it as the function gets it: in a torch.no_grad() block within the
        function it is detached. Autograd runs an op with a gradient of its own in such a block too."""
        detached = self.gradients and not torch.is_grad_enabled() and node.target is not ATTACHED
        is_own = False  # whether it has its memory alone
        if detached and not is_made_anew(node) and node.target is not aten.detach.default:
            is_own = makes_memory(node)
            node.meta["val"], where = out, {key: node.meta[key] for key in ("path", "line") if key in node.meta}
            node = self.graph.call_function(aten.detach.default, (node,))
            node.meta.update(where)
        elif isinstance(self.aliases.find(out), fx.Node) and node.target is not aten.detach.default:
            self.graph.erase_node(node)  # a view that changes nothing
            return out
        if node.target is aten.detach.default and not is_own:
            shared, out = out, zeros_like(out)  # a geometry of its own, to tell it from what it was detached from
            self.aliases.may_share("changes in place what shares memory with what was detached from it", shared, out)
        self.define(node, out)
        return out
