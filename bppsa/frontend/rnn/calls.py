"""One call of a recurrent module: do its tensors fit, and how are they laid out with time first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bppsa.frontend.ordinary import is_plain
from bppsa.frontend.rnn import autocast
from bppsa.frontend.rnn.shapes import weights_of
from bppsa.frontend.rnn.spec import Spec

_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16})


class Form(NamedTuple):
    """How one way of giving input becomes tensors with time first, and back."""

    enter: Callable[[Tensor], Tensor]  # input -> x [T, B, I]
    leave: Callable[[Tensor], Any]  # y [T, B, D * H] -> output
    state_in: Callable[[Tensor], Tensor]  # given state -> [L * D, B, *]
    state_out: Callable[[Tensor], Tensor]


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _swap(tensor: Tensor) -> Tensor:
    return tensor.transpose(0, 1)


def _unsqueeze(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(1)


def _squeeze(tensor: Tensor) -> Tensor:
    return tensor.squeeze(1)


_TIME_FIRST = Form(_same, _same, _same, _same)
_BATCH_FIRST = Form(_swap, _swap, _same, _same)
_UNBATCHED = Form(_unsqueeze, _squeeze, _unsqueeze, _squeeze)
_FORMS = {(3, False): _TIME_FIRST, (3, True): _BATCH_FIRST, (2, False): _UNBATCHED, (2, True): _UNBATCHED}


def _packed(batch_sizes: Tensor, there: Tensor | None, back: Tensor | None) -> Form:
    def permute(order: Tensor | None) -> Callable[[Tensor], Tensor]:
        return _same if order is None else lambda state: state.index_select(1, order)

    return Form(_same, lambda y: PackedSequence(y, batch_sizes, there, back), permute(there), permute(back))


class RNNCall(NamedTuple):
    """What `frontend.rnn.recurrent.run` is given, and how its result goes back to the caller."""

    x: Tensor  # [T, B, I], or the data of a packed sequence, [sum of batch_sizes, I]
    batch_sizes: Tensor | None  # int64 [T] on the CPU
    states: tuple[Tensor, ...] | None  # [L * D, B, *] each; None: zeros
    weights: Sequence[Tensor]  # in PyTorch's flat order
    form: Form
    dtypes: tuple[torch.dtype, ...] | None = None  # under autocast: of the output and of each state

    def deliver(self, y: Tensor, states: tuple[Tensor, ...]) -> Any:
        if self.dtypes is not None:
            y, *rest = (tensor.to(dtype) for tensor, dtype in zip((y, *states), self.dtypes, strict=True))
            states = tuple(rest)
        if self.form.state_out is not _same:
            states = tuple(map(self.form.state_out, states))
        return self.form.leave(y), states if len(states) > 1 else states[0]


def gather(module: nn.RNNBase, input: Any, hx: Any) -> RNNCall | None:
    """The call with time first; None where a tensor is not plain or does not fit, which PyTorch is to judge."""
    laid_out = _lay_out(module, input)
    if laid_out is None or laid_out[0].shape[-1] != module.input_size:
        return None
    x, batch_sizes, form, batch = laid_out
    shapes, weights = Spec.of(module).shapes, weights_of(module)
    if not _fit(weights, shapes.weights):
        return None
    states: tuple[Tensor, ...] | None = None
    if hx is not None:
        given = tuple(hx) if len(shapes.widths) > 1 and isinstance(hx, (tuple, list)) else (hx,)
        lead = (shapes.rows,) if form is _UNBATCHED else (shapes.rows, batch)
        if not _fit(given, [(*lead, width) for width in shapes.widths]):
            return None
        states = tuple(map(form.state_in, given))

    call = RNNCall(x, batch_sizes, states, weights, form)
    device, dtype, others = x.device, x.dtype, (*weights, *(states or ()))
    if any([tensor.device != device for tensor in others]):
        return None
    if torch.is_autocast_enabled(device.type):
        return None if x.is_cuda else _autocast(module, call)
    return call if dtype in _DTYPES and all([tensor.dtype is dtype for tensor in others]) else None


def _lay_out(module: nn.RNNBase, input: Any) -> tuple[Tensor, Tensor | None, Form, int] | None:
    """x, batch_sizes, how it was given, B."""
    if isinstance(input, PackedSequence):
        x, batch_sizes, there, back = input
        if not is_sound(input):
            return None
        return x, batch_sizes, _packed(batch_sizes, there, back), int(batch_sizes[0])
    if not is_plain(input) or (input.dim(), module.batch_first) not in _FORMS or not input.numel():
        return None
    form = _FORMS[input.dim(), module.batch_first]
    x = form.enter(input)
    return x, None, form, x.shape[1]


def _autocast(module: nn.RNNBase, call: RNNCall) -> RNNCall | None:
    """The call in the one dtype in which we compute."""
    tensors = (call.x, *(call.states or ()), *call.weights)
    dtypes = autocast.result_dtypes(module, call.x, call.batch_sizes, call.states, call.weights)
    if dtypes is None:
        return None
    shared = {tensor.dtype for tensor in tensors}
    dtype = shared.pop() if len(shared) == 1 and shared <= _DTYPES else torch.float32
    return call._replace(
        x=call.x.to(dtype),
        states=call.states and tuple(state.to(dtype) for state in call.states),
        weights=[weight.to(dtype) for weight in call.weights],
        dtypes=dtypes,
    )


def _fit(tensors: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> bool:
    if len(tensors) != len(shapes):
        return False
    return all([is_plain(tensor) and tensor.shape == shape for tensor, shape in zip(tensors, shapes, strict=True)])


def is_sound(packed: PackedSequence) -> bool:
    """A PackedSequence may be made by hand; a kernel that trusted its numbers would read elsewhere."""
    x: Any
    batch_sizes: Any
    x, batch_sizes, there, _ = packed
    if not is_plain(x) or x.dim() != 2:
        return False
    if not is_plain(batch_sizes) or batch_sizes.dtype != torch.int64 or batch_sizes.dim() != 1 or not len(batch_sizes):
        return False
    if there is not None and not (is_plain(there) and there.shape == (int(batch_sizes[0]),)):
        return False
    falling = bool((batch_sizes[1:] <= batch_sizes[:-1]).all())
    return falling and int(batch_sizes[-1]) > 0 and int(batch_sizes.sum()) == len(x)
