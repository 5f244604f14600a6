"""What torch.export keeps whole: calls of PyTorch's own modules and of custom autograd.Functions.

Export records ATen ops, and would look into both: a Function's backward would be lost, a norm's or a recurrent layer's
call would be many ops, and what a module does by its mode or its hooks would be done once and for all. While a model is
exported each such call is one op of ours. The op computes what the call computes, which tells export the shapes; in the
graph it stands for the call itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import transformer
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import checkpoint
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from bppsa.errors import PartitionError
from bppsa.fxpasses.lines import place_here
from bppsa.fxpasses.partition.call.refusals import BY_HAND, WHAT_FORWARDS_RAISE, meaning
from bppsa.fxpasses.partition.capture.lines import noted
from bppsa.fxpasses.theirs import is_ours, raise_if_ours, theirs

# They hold layers.
OPENED = (
    *(nn.Sequential, nn.ModuleList, nn.ModuleDict),
    *(nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder),
)
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")
# Whose `apply` that of every Function calls, also one that was looked up before: `function = MyFunction.apply`.
APPLIED: Any = torch.autograd.function._SingleLevelFunction
REWRITTEN = "bppsa."  # where classes are from that stand for PyTorch's in a compiled model


@dataclass(frozen=True)
class Custom:
    """The call of an autograd.Function, with a name for the code that torch.fx writes. held: by their places among the
    leaves of the arguments, those that no code stands for, such as functions; None is given in the place of each."""

    function: Any
    held: tuple[tuple[int, Any], ...] = field(default=(), hash=False)

    @property
    def __name__(self) -> str:
        return str(self.function.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.held:
            leaves, spec = tree_flatten((args, kwargs))
            args, kwargs = tree_unflatten(replaced(leaves, dict(self.held)), spec)
        return theirs(self.function.apply, *args, **kwargs)


def replaced(leaves: Sequence[Any], others: Mapping[int, Any]) -> list[Any]:
    return [others.get(i, leaf) for i, leaf in enumerate(leaves)]


@dataclass(frozen=True)
class OpaqueCall:
    """target: the path of a module, or what is called. What is no tensor and no number of rows or steps is in `leaves`
    as it is; the others are given to the op in this order: tensors, sizes."""

    target: str | Custom
    run: Callable[..., Any]
    leaves: tuple[Any, ...]
    spec: TreeSpec  # of (args, kwargs)
    tensors: tuple[int, ...]  # which of the leaves
    sizes: tuple[int, ...]

    def arguments(self, tensors: Sequence[Any], sizes: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = list(self.leaves)
        for i, value in (*zip(self.tensors, tensors, strict=True), *zip(self.sizes, sizes, strict=True)):
            given[i] = value
        args, kwargs = tree_unflatten(given, self.spec)
        return args, kwargs


class OpaqueCalls:
    """The calls of one export. results: what each call returned, with the number of a tensor in the place of each."""

    def __init__(self) -> None:
        self.calls: list[OpaqueCall] = []
        self.results: list[Any] = []
        self.within = False  # a call: what it calls itself is its own affair

    def record(self, target: str | Custom, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.within:
            return run(*args, **kwargs)
        leaves, spec = tree_flatten((args, kwargs))
        tensors = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        sizes = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.SymInt))
        held = {*tensors, *sizes}
        kept = tuple(None if i in held else leaf for i, leaf in enumerate(leaves))
        number = len(self.calls)
        self.calls.append(OpaqueCall(target, run, kept, spec, tensors, sizes))
        self.results.append(None)
        with noted():
            made = torch.ops.bppsa.whole([leaves[i] for i in tensors], [leaves[i] for i in sizes], number)
        return tree_map_only(TensorNumber, lambda place: made[place.number], self.results[number])

    def run(self, tensors: Sequence[Tensor], sizes: Sequence[Any], number: int) -> list[Tensor]:
        """What the op does."""
        call = self.calls[number]
        args, kwargs = call.arguments(tensors, sizes)
        self.within = True
        try:
            leaves, spec = tree_flatten(call.run(*args, **kwargs))
        finally:
            self.within = False
        made = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        places = iter(range(len(made)))
        numbered = [TensorNumber(next(places)) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.results[number] = tree_unflatten(numbered, spec)
        return made


@dataclass(frozen=True)
class TensorNumber:
    """Stands for a tensor that a call returned."""

    number: int


_now = threading.local()  # the OpaqueCalls of the thread's export
LIBRARY = torch.library.Library("bppsa", "FRAGMENT")
LIBRARY.define("whole(Tensor[] tensors, SymInt[] sizes, int number) -> Tensor[]")
fx.node.has_side_effect(torch.ops.bppsa.whole.default)  # a norm's, for one: it is called though nobody reads the result
LIBRARY.impl("whole", lambda *given: calls_here().run(*given), "CompositeImplicitAutograd")


def calls_here() -> OpaqueCalls:
    """Raises PartitionError in threads that the forward has begun: no graph shows what they do."""
    calls: OpaqueCalls | None = getattr(_now, "calls", None)
    if calls is None:
        raise PartitionError(
            f"{place_here()}: the forward calls layers in another thread, and no graph shows what it does there; call "
            f"them in a row"
        )
    return calls


@contextmanager
def kept_whole(model: nn.Module) -> Iterator[OpaqueCalls]:
    """Within the block, in this thread, such calls are one op each. The model is to be called by no other thread."""
    calls, thread = OpaqueCalls(), threading.get_ident()
    _now.calls = calls

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        run: Any = super(APPLIED, cls).apply
        if threading.get_ident() != thread or not issubclass(cls, torch.autograd.Function):  # one that a vmap makes
            return run(*args, **kwargs)
        if cls is checkpoint.CheckpointFunction:  # function, whether the random state is kept, and its arguments
            return theirs(args[0], *args[2:])
        return calls.record(Custom(cls), run, args, kwargs)

    patches = (
        (torch.distributions.Distribution, "_validate_args", False),  # by the values of parameters, as in `if`
        (transformer, "_detect_is_causal_mask", lambda mask, is_causal=None, size=None: bool(is_causal)),
    )
    with ExitStack() as stack:
        stack.callback(delattr, _now, "calls")
        for owner, name, value in patches:
            stack.callback(setattr, owner, name, owner.__dict__[name])
            setattr(owner, name, value)
        stack.callback(delattr, APPLIED, "apply")
        APPLIED.apply = classmethod(applied)
        for path, module in model.named_modules():
            if path and is_one_node(module):
                stack.enter_context(one_op(module, path, calls))
        yield calls


def is_one_node(module: nn.Module) -> bool:
    """Whether a call of the module is one node of the graph."""
    home = type(module).__module__
    if isinstance(module, (nn.RNNBase, _NormBase)) or home.startswith(REWRITTEN):
        return True
    return home.startswith("torch.nn") and not isinstance(module, OPENED)


@contextmanager
def one_op(module: nn.Module, path: str, calls: OpaqueCalls) -> Iterator[None]:
    """Its hooks and its forward belong to the call."""
    own = dict(module.__dict__)

    def call(*args: Any, **kwargs: Any) -> Any:
        plain = "forward" not in own and not any(own[name] for name in HOOKS)
        if plain and (made := outputs_of(module, *args, **kwargs)):
            return made
        put_back()
        counted = isinstance(module, _NormBase) and module.momentum is None  # which reads how many batches it has seen
        try:
            if counted:
                module.__dict__["momentum"] = 0.0
            return theirs(module, *args, **kwargs)
        except WHAT_FORWARDS_RAISE as error:
            if is_ours(error) and not isinstance(module, nn.RNNBase):  # whose class may be ours, and goes on to PyTorch
                raise
            raise PartitionError(
                f"{place_here()}: {path} ({type(module).__name__}): {meaning(error)}; or {BY_HAND}"
            ) from error
        finally:
            if counted:
                module.__dict__["momentum"] = None
            replace()

    def replace() -> None:
        module.__dict__.update({name: type(own[name])() for name in HOOKS})
        module.__dict__["forward"] = lambda *args, **kwargs: calls.record(path, call, args, kwargs)

    def put_back() -> None:
        del module.__dict__["forward"]
        module.__dict__.update({name: own[name] for name in (*HOOKS, "forward") if name in own})

    replace()
    try:
        yield
    finally:
        put_back()


def outputs_of(module: nn.Module, input: Any = None, *rest: Any, **kwargs: Any) -> Any:
    """What a recurrent module returns, without values; None for others.

    PyTorch's own function would be run step by step, which takes a number of steps for the only one.
    """
    if not isinstance(module, nn.RNNBase) or not isinstance(input, Tensor):
        return None
    homes = [base.__module__ for base in type(module).__mro__ if "forward" in vars(base)]
    if not all(home.startswith(("torch.nn", REWRITTEN)) for home in homes):
        return None  # a class of the user's, which may return something else
    dtypes = dtypes_of(module, input)
    if dtypes is None:
        return None
    size, directions = module.proj_size or module.hidden_size, 1 + module.bidirectional
    rows = [] if input.dim() == 2 else [input.shape[0 if module.batch_first else 1]]
    y = input.new_empty([*input.shape[:-1], size * directions], dtype=dtypes[0])
    h = input.new_empty([module.num_layers * directions, *rows, size], dtype=dtypes[1])
    c = input.new_empty([module.num_layers * directions, *rows, module.hidden_size], dtype=dtypes[-1])
    return y, (h, c) if module.mode == "LSTM" else h


def dtypes_of(module: nn.RNNBase, input: Tensor) -> Sequence[torch.dtype] | None:
    """The dtypes of the output and the states: under autocast those that a small layer of the kind gives, or None where
    that raises, as PyTorch's own does on CPUs that oneDNN has no kernels for."""
    if not torch.is_autocast_enabled("cpu"):
        return [input.dtype] * 3
    kind = {"LSTM": nn.LSTM, "GRU": nn.GRU}.get(module.mode, nn.RNN)
    sizes = {"proj_size": 1} if module.proj_size else {}
    with _disable_current_modes(), torch.random.fork_rng(devices=[]):
        small = kind(2, 2, module.num_layers, dtype=next(module.parameters()).dtype, **sizes)
        try:
            return [leaf.dtype for leaf in tree_leaves(theirs(small, torch.zeros(2, 2, 2, dtype=input.dtype)))]
        except RuntimeError as error:
            raise_if_ours(error)
            return None
