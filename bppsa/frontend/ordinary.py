"""Which calls are ordinary: plain dense tensors on a CPU or a GPU come in, and nothing transforms or watches the call.

All of this runs in each step of a streaming model, so each test is a cheap question (0.05 to 0.4 us).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from bppsa.errors import Reason
from bppsa.frontend.trials import is_logging
from bppsa.runtime.worker.modes import Harmless

WATCHED = Reason("this call was watched by bppsa itself, to find loops over time; later calls are not")
ELSEWHERE = Reason("a default device that is not the CPU", mend="name the device where tensors are made")
WATCHED_BY_OTHERS = Reason("a functorch transform, forward-mode AD, a tracer or a mode is active")

_TYPES = (Tensor, nn.Parameter)  # a subclass may mean anything by an op

# Whatever makes a tensor special is one of its dispatch keys: another device, sparse, nested, quantized, negated
# lazily, wrapped by functorch or in Python. These are the keys with none of that: of usual and inference tensors.
_keys = torch._C._dispatch_keys
with torch.inference_mode(False):
    _PLAIN = [_keys(torch.empty(0, device="cpu"))]
with torch.inference_mode():
    _PLAIN.append(_keys(torch.empty(0, device="cpu")))


@functools.cache
def _plain_on_gpu() -> list[Any]:
    with torch.inference_mode(False):
        usual = _keys(torch.empty(0, device="cuda"))
    with torch.inference_mode():
        return [usual, _keys(torch.empty(0, device="cuda"))]


def is_ordinary_moment() -> bool:
    """No functorch transform, forward-mode AD, tracer, or mode that sees each op: those take PyTorch's path."""
    return (
        torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
        and (torch._C._len_torch_dispatch_stack() == 0 or _only_harmless())
        and (torch._C._len_torch_function_stack() == 0 or _only_harmless_functions())
        and torch._C._get_tracing_state() is None
    )


def unusual_moment() -> Reason | None:
    """Why a call takes PyTorch's path at such a moment; None at an ordinary one."""
    if is_ordinary_moment():
        return None
    if is_logging():
        return WATCHED
    modes = [*_get_current_dispatch_mode_stack(), *_get_current_function_mode_stack()]
    transformed = torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    is_elsewhere = (
        not transformed and bool(modes) and all(isinstance(mode, (Harmless, DeviceContext)) for mode in modes)
    )
    return ELSEWHERE if is_elsewhere else WATCHED_BY_OTHERS


def _only_harmless() -> bool:
    """A job draws random numbers, and holds what products give, by modes of our own."""
    return all(isinstance(mode, Harmless) for mode in _get_current_dispatch_mode_stack())


def _only_harmless_functions() -> bool:
    """torch.set_default_device("cpu") is a function mode too."""
    return all(isinstance(mode, Harmless) or _is_cpus(mode) for mode in _get_current_function_mode_stack())


def _is_cpus(mode: Any) -> bool:
    return type(mode) is DeviceContext and mode.device.type == "cpu"


def is_plain(tensor: Any) -> bool:
    """Whether it is a dense tensor with memory of its own kind on a CPU or a GPU."""
    if type(tensor) not in _TYPES:
        return False
    keys = _keys(tensor)
    return keys in _PLAIN or (tensor.is_cuda and keys in _plain_on_gpu())


def device_of(tensors: Iterable[Tensor]) -> torch.device:
    """The first GPU that one of them is on, or the CPU."""
    return next((tensor.device for tensor in tensors if tensor.is_cuda), torch.device("cpu"))


def mixed(tensors: Sequence[Tensor]) -> Reason | None:
    """Why tensors cannot be given to kernels together."""
    if all(map(is_plain, tensors)) and len({tensor.device for tensor in tensors}) == 1:
        return None
    return Reason("tensors that are not all plain, dense and on one CPU or GPU", mend="move them, or resolve views")
