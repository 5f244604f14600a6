"""What stands for a value while a model is traced: the node that gives it, and the example's value beside it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import fx

if TYPE_CHECKING:
    from bppsa.fxpasses.partition.tracing import Tracer


LENGTH = len  # which is another function while a model is traced


class Traced(fx.Proxy):
    """What Python has to know at once is decided by the example."""

    tracer: Tracer
    example: Any

    def __getattr__(self, name: str) -> Any:
        if callable(getattr(self.example, name)):  # raises what the model would raise
            return lambda *args, **kwargs: self.tracer.create_proxy("call_method", name, (self, *args), kwargs)
        return self.tracer.create_proxy("call_function", getattr, (self, name), {})

    def __index__(self) -> int:
        return self.tracer.decided(self, "index")

    def __int__(self) -> int:
        return self.tracer.decided(self, "int")

    def __float__(self) -> float:
        return self.tracer.decided(self, "float")

    def __len__(self) -> int:
        return self.tracer.decided(self.tracer.create_proxy("call_function", LENGTH, (self,), {}), "index")

    def __contains__(self, item: Any) -> bool:
        return bool(self.tracer.create_proxy("call_function", operator.contains, (self, item), {}))

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})


def in_place(name: str) -> Callable[[Traced, Any], Traced]:
    change = getattr(operator, name)
    return lambda proxy, other: proxy.tracer.create_proxy("call_function", change, (proxy, other), {})


CHANGING = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
for sign in CHANGING:
    setattr(Traced, f"__i{sign}__", in_place(f"__i{sign}__"))
