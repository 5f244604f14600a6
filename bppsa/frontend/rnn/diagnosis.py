"""What was wrong with a call that PyTorch refused: place, shapes and mend, in an error of PyTorch's own kind.

PyTorch judges and this only explains: which type it raises differs by module and form of input (nn.LSTM looks at packed
input only inside its kernel), and what it accepts is never refused here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bppsa.errors import OURS, ArgumentError, BppsaError, InputKindError, kind_of
from bppsa.frontend.rnn.shapes import shapes_of, weights_of
from bppsa.frontend.state import state_of

_STATES = ("h0", "c0")
# Ours for what PyTorch's forward raises over arguments that are no tensors: these lack an attribute, or the function
# that they are given to refuses them.
KINDS: dict[type[Exception], type[BppsaError]] = {
    **OURS,
    AttributeError: InputKindError,
    TypeError: ArgumentError,
}


def named(error: Exception, module: nn.RNNBase, problem: str) -> BppsaError:
    """Our error of the same kind; PyTorch's own words stay in it."""
    kind = next(ours for theirs, ours in KINDS.items() if isinstance(error, theirs))
    path = state_of(module).path or "<model>"
    return kind(f"{path} ({type(module).__name__}): {problem} (PyTorch: {error})")


def find(module: nn.RNNBase, input: Any, hx: Any) -> str | None:
    """The first thing that does not fit, and the mend; None where all fits, so that the cause lies elsewhere."""
    no_tensor = next(_no_tensor(module, input, hx), None)
    if no_tensor is not None:
        return no_tensor
    packed = isinstance(input, PackedSequence)
    x = input.data if packed else input
    states = () if hx is None else tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
    named_states = dict(zip(_STATES, states, strict=False))  # c0 only for nn.LSTM
    named_weights = dict(zip(module._flat_weights_names, weights_of(module), strict=True))
    tensors = {"input": x, **named_states, **named_weights}
    if not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        return None  # a weight that somebody took away
    batch_sizes = input.batch_sizes if packed else None
    return next((text for check in (_sizes, _kinds) for text in check(module, tensors, batch_sizes)), None)


def _no_tensor(module: nn.RNNBase, input: Any, hx: Any) -> Iterator[str]:
    if not isinstance(input, (Tensor, PackedSequence)):
        form = f"{_form(module)}, or [T, {module.input_size}] for one sequence"
        yield f"input is {_kind(input)}; give a tensor {form}, or a PackedSequence"
    shapes = shapes_of(module)
    if hx is None:
        return
    if not isinstance(module, nn.LSTM):
        if not isinstance(hx, Tensor):
            yield f"hx is {_kind(hx)}; give a tensor [{shapes.rows}, B, {shapes.widths[0]}], or none for zeros"
    elif not (isinstance(hx, (tuple, list)) and len(hx) == 2):
        yield f"hx is {_kind(hx)}; give the tuple (h0, c0), as the module returns it"
    else:
        for name, state, width in zip(_STATES, hx, shapes.widths, strict=True):
            if not isinstance(state, Tensor):
                yield f"{name} is {_kind(state)}; give a tensor [{shapes.rows}, B, {width}]"


def _kind(value: Any) -> str:
    """ "a tuple of 3", "an ndarray", "None"."""
    return kind_of(value) + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")


def _form(module: nn.RNNBase) -> str:
    return f"[{'B, T' if module.batch_first else 'T, B'}, {module.input_size}]"


def _sizes(module: nn.RNNBase, tensors: dict[str, Tensor], batch_sizes: Tensor | None) -> Iterator[str]:
    x, shapes = tensors["input"], shapes_of(module)
    form = _form(module)
    if batch_sizes is not None:
        if x.dim() != 2:
            yield f"packed data {_text(x)} has {x.dim()} dimensions; pack a {form} input"
            return
        batch, steps, unbatched = int(batch_sizes[0]), len(batch_sizes), False
        if len(x) < int(batch_sizes.sum()):
            yield f"packed data {_text(x)} has fewer rows than its batch_sizes sum to, {int(batch_sizes.sum())}"
    elif x.dim() not in (2, 3):
        yield f"input {_text(x)} has {x.dim()} dimensions; give {form}, or [T, {module.input_size}] for one sequence"
        return
    else:
        unbatched = x.dim() == 2
        batch_dim = 0 if module.batch_first else 1
        steps, batch = (x.shape[0], 1) if unbatched else (x.shape[1 - batch_dim], x.shape[batch_dim])
    if x.shape[-1] != module.input_size:
        yield (
            f"input {_text(x)} has {x.shape[-1]} features where input_size is {module.input_size}; "
            f"give {form}, or make the module with input_size={x.shape[-1]}"
        )
    if steps == 0:
        yield f"input {_text(x)} has no time step; leave empty sequences out"
    lead = (shapes.rows,) if unbatched else (shapes.rows, batch)
    for name, width in zip(_STATES, shapes.widths, strict=False):
        if name in tensors and tensors[name].shape != (*lead, width):
            yield f"{name} {_text(tensors[name])} does not go with input {_text(x)}; give {[*lead, width]}"
    for name, shape in zip(module._flat_weights_names, shapes.weights, strict=True):
        if tensors[name].shape != shape:
            yield f"{name} is {_text(tensors[name])} where the module's sizes make it {list(shape)}"


def _kinds(module: nn.RNNBase, tensors: dict[str, Tensor], batch_sizes: Tensor | None) -> Iterator[str]:
    first = module._flat_weights_names[0]
    for attribute in ("device", "dtype"):
        kind = getattr(tensors[first], attribute)
        for name, tensor in tensors.items():
            if (other := getattr(tensor, attribute)) != kind:
                mend = f"bring both to one {attribute} with .to(...)"
                yield f"{name} {_text(tensor)} has {attribute} {other} where {first} has {kind}; {mend}"


def _text(tensor: Tensor) -> str:
    return str(list(tensor.shape))
