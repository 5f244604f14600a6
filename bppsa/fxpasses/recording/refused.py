"""Calls that a recording would lose: the dispatcher does not see them, or sees them without their purpose."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bppsa.common.graph import tensors_in
from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.lines import is_users_frame, mend_in_place
from bppsa.fxpasses.recording.recorder import Recorder
from bppsa.fxpasses.replaced import of_pytorch
from bppsa.fxpasses.theirs import theirs

HANDS_OUT = Reason("hands a tensor's values to Python", mend="stay in torch ops")
BENDS_GRADIENT = Reason("changes what autograd does", mend="use detach() and torch ops")
REFUSED: dict[Any, Reason] = {
    **dict.fromkeys((Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.data_ptr, Tensor.__dlpack__), HANDS_OUT),
    **dict.fromkeys((Tensor.register_hook, Tensor.backward, Tensor.retain_grad), BENDS_GRADIENT),
    **dict.fromkeys((torch.autograd.grad, torch.autograd.backward), BENDS_GRADIENT),
    Tensor.data.__get__: BENDS_GRADIENT,  # type: ignore[attr-defined]
}
# What autograd knows of a tensor, which need not be the same in each step and each call.
OF_AUTOGRAD: dict[Any, str] = {getattr(Tensor, name).__get__: name for name in ("requires_grad", "is_leaf", "grad_fn")}
# Whether they copy depends on how a tensor lies in memory, which a recording does not.
MAY_COPY = {
    *(getattr(Tensor, name) for name in ("reshape", "reshape_as", "flatten", "ravel", "contiguous", "to", "type")),
    *(getattr(torch, name) for name in ("reshape", "flatten", "ravel", "einsum")),
}


class NoEscape(TorchFunctionMode):
    """Refuses what the dispatcher does not see."""

    def __init__(self, recorder: Recorder, instead: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.recorder, self.instead = recorder, instead

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict | None = None) -> Any:
        func = of_pytorch(func)
        if func in REFUSED and func not in self.instead:
            raise Unsupported(replace(REFUSED[func], op=getattr(func, "__name__", str(func))))
        if func in OF_AUTOGRAD and is_users_frame(sys._getframe(1)) and self.recorder.is_recorded(args[0]):
            return self.recorder.asked(OF_AUTOGRAD[func], theirs(func, *args))
        if kwargs and kwargs.get("out") is not None:
            raise Unsupported("writes into out=", op=func.__name__, mend=mend_in_place("use what it returns"))
        if func in self.instead:
            result = theirs(self.instead[func], *args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        result = theirs(func, *args, **(kwargs or {}))
        if func in MAY_COPY and isinstance(result, Tensor):
            given = tensors_in((args, kwargs) if func is torch.einsum else (args[:1], (kwargs or {}).get("input")))
            self.recorder.aliases.may_share(
                f"changes in place what {func.__name__} may have copied, or not", result, *given
            )
        return result
