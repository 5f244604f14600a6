"""The gradient of a pruned weight, as long as nobody asks for more than its kept entries.

It is zero everywhere else, and to write these zeros and to read them in an optimizer's step takes longer than a sparse
backward. To autograd and to its users it is a tensor of the weight's shape. Some ops work on the kept entries (`kept`);
before any other it becomes an ordinary tensor's numbers, for good.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from bppsa.common.process.forks import renewed_in_children
from bppsa.errors import InputError
from bppsa.runtime.sparse_conv.kept import KEEPING, KeptValues
from bppsa.runtime.untraced import untraced

ALIASES = torch.ops.aten.detach.default, torch.ops.aten.alias.default


class GradientStorage:
    """What all tensors share that are one gradient."""

    one_at_a_time = threading.Lock()  # two threads' memories would not see each other's writes

    @classmethod
    def renew_lock(cls) -> None:
        cls.one_at_a_time = threading.Lock()

    def __init__(self, now: KeptValues | Tensor) -> None:
        self.now = now

    def dense(self) -> Tensor:
        """Has the gradient as an ordinary tensor from now on."""
        with self.one_at_a_time, torch.inference_mode(False):  # what outlives an inference block is no inference tensor
            if isinstance(self.now, KeptValues):
                self.now = self.now.dense()
            return self.now


renewed_in_children(GradientStorage)


class KeptGradient(Tensor):
    """A gradient on the CPU that holds kept entries alone. An op gives what it gives for `to_dense()`, or, where it
    would change the shape or the order in memory in place, raises InputError."""

    _numbers: GradientStorage
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls, size: torch.Size, dtype: torch.dtype, numbers: GradientStorage, strides: tuple[int, ...] | None = None
    ) -> KeptGradient:
        made: KeptGradient = Tensor._make_wrapper_subclass(cls, size, strides, dtype=dtype)
        made._numbers = numbers
        torch._C._set_throw_on_mutable_data_ptr(made)  # an extension that looks for memory of its own gets an error
        return made

    def to_dense(self, dtype: torch.dtype | None = None, *, masked_grad: bool | None = None) -> Tensor:
        """The same numbers as an ordinary tensor, whose memory they share from now on; in another dtype a copy."""
        dense = self._numbers.dense()
        return dense if dtype is None else dense.to(dtype)

    @classmethod
    @untraced
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if op in ALIASES:
            return args[0].data
        given, function = [numbers(x) for x in args], KEEPING.get(op)
        if function is not None and any(isinstance(x, KeptValues) for x in given):
            result = function(*given, **kwargs or {})
            if result is not None:
                return tensor(result, args)
        return on_dense(op, args, kwargs or {})

    @property
    def data(self) -> Tensor:
        """The same gradient with a version counter of its own."""
        return KeptGradient(self.shape, self.dtype, self._numbers, self.stride())

    @data.setter
    def data(self, new: Tensor) -> None:
        dense = new.to_dense()
        Tensor.data.__set__(self, dense)  # type: ignore[attr-defined]  # shape, dtype and order in memory
        self._numbers = GradientStorage(dense)

    def numpy(self, *, force: bool = False) -> Any:
        return self.to_dense().numpy(force=force)

    def tolist(self) -> Any:
        return self.to_dense().tolist()

    def data_ptr(self) -> int:
        return self.to_dense().data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.to_dense().untyped_storage()

    def __dlpack__(self, **options: Any) -> Any:
        return self.to_dense().__dlpack__(**options)

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.to_dense().__reduce_ex__(protocol)


def gradient_of(kept: KeptValues) -> KeptGradient:
    return KeptGradient(kept.size, kept.values.dtype, GradientStorage(kept))


def numbers(x: Any) -> Any:
    return x._numbers.now if isinstance(x, KeptGradient) else x


def tensor(result: KeptValues | Tensor, args: Sequence[Any]) -> Tensor:
    """What an op has written in place stays the argument that it was."""
    for x in args:
        if numbers(x) is result:
            return x
    return gradient_of(result) if isinstance(result, KeptValues) else result


def on_dense(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    was: dict[int, KeptGradient] = {}
    before: list[Tensor] = []

    def dense(x: Any) -> Any:
        if not isinstance(x, KeptGradient):
            return x
        found = x.to_dense()
        if id(found) not in was:
            was[id(found)] = x
            before.append(found.detach())
        return found

    result = op(*tree_map(dense, args), **tree_map(dense, kwargs))
    for gradient, numbers_before in zip(was.values(), before, strict=True):
        check_form(gradient, numbers_before, op)
    return tree_map(lambda x: was.get(id(x), x), result)


def check_form(gradient: KeptGradient, before: Tensor, op: Any) -> None:
    """Raises InputError where `op` has changed the form; the numbers are put back as they lay in memory `before`."""
    now, shape = gradient.to_dense(), gradient.shape
    if now.shape != shape or now.stride() != gradient.stride():
        became = list(now.shape)
        now.set_(before)  # type: ignore[call-overload]
        raise InputError(
            f"a pruned weight's gradient {list(shape)} cannot become {became} in place, by {op}; "
            "assign a new tensor made of .to_dense() to the weight's .grad"
        )
