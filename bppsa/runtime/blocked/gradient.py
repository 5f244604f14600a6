"""The gradient of a pruned weight, as long as nobody asks for more than its kept entries.

It is zero everywhere else, and to write these zeros and to read them in an optimizer's step takes longer than a sparse
backward. To autograd and to its users it is a tensor of the weight's shape. Some ops work on the kept entries (`kept`);
before any other it becomes an ordinary tensor's numbers, for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from bppsa.errors import InputError
from bppsa.runtime.blocked.kept import KEEPING, Kept
from bppsa.runtime.untraced import untraced

ALIASES = torch.ops.aten.detach.default, torch.ops.aten.alias.default


class Numbers:
    """What all tensors share that are one gradient."""

    def __init__(self, now: Kept | Tensor) -> None:
        self.now = now

    def dense(self) -> Tensor:
        """From now on."""
        if isinstance(self.now, Kept):
            self.now = self.now.dense()
        return self.now


class KeptGradient(Tensor):
    """A gradient on the CPU that holds kept entries alone. Any op gives what it gives for `dense()`."""

    _numbers: Numbers
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, size: torch.Size, dtype: torch.dtype, numbers: Numbers) -> KeptGradient:
        made: KeptGradient = Tensor._make_wrapper_subclass(cls, size, dtype=dtype)
        made._numbers = numbers
        torch._C._set_throw_on_mutable_data_ptr(made)  # an extension that looks for memory of its own gets an error
        return made

    def dense(self) -> Tensor:
        """The same numbers as an ordinary tensor, whose memory they share from now on."""
        return self._numbers.dense()

    @classmethod
    @untraced
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if op in ALIASES:
            return KeptGradient(args[0].shape, args[0].dtype, args[0]._numbers)
        given, function = [numbers(x) for x in args], KEEPING.get(op)
        if function is not None and any(isinstance(x, Kept) for x in given):
            result = function(*given, **kwargs or {})
            if result is not None:
                return tensor(result, args)
        return on_dense(op, args, kwargs or {})

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, new: Tensor) -> None:
        if new.shape != self.shape or new.dtype is not self.dtype:
            raise refused(f"becomes {new.dtype} of {list(new.shape)}, assigned to its .data")
        self._numbers = new._numbers if isinstance(new, KeptGradient) else Numbers(new)

    def numpy(self, *, force: bool = False) -> Any:
        return self.dense().numpy(force=force)

    def tolist(self) -> Any:
        return self.dense().tolist()

    def data_ptr(self) -> int:
        return self.dense().data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.dense().untyped_storage()

    def __dlpack__(self, **options: Any) -> Any:
        return self.dense().__dlpack__(**options)

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.dense().__reduce_ex__(protocol)


def gradient_of(kept: Kept) -> KeptGradient:
    return KeptGradient(kept.size, kept.values.dtype, Numbers(kept))


def numbers(x: Any) -> Any:
    return x._numbers.now if isinstance(x, KeptGradient) else x


def tensor(result: Kept | Tensor, args: Sequence[Any]) -> Tensor:
    """What an op has written in place stays the argument that it was."""
    for x in args:
        if numbers(x) is result:
            return x
    return gradient_of(result) if isinstance(result, Kept) else result


def on_dense(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    was: dict[int, KeptGradient] = {}

    def dense(x: Any) -> Any:
        if not isinstance(x, KeptGradient):
            return x
        was[id(x.dense())] = x
        return x.dense()

    result = op(*tree_map(dense, args), **tree_map(dense, kwargs))
    for gradient in was.values():
        if (now := gradient.dense()).shape != gradient.shape or now.stride() != gradient.stride():
            raise refused(f"becomes {list(now.shape)} in place, by {op}")
    return tree_map(lambda x: was.get(id(x), x), result)


def refused(what: str) -> InputError:
    return InputError(
        f"a pruned weight's gradient {what}; assign a new tensor, made of .dense(), to the weight's .grad"
    )
