"""Which classes of objects TorchDynamo meets while it captures a forward: those of helpers, and of modules elsewhere.

It guards what class an object has, and seldom what the class has for a method.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from bppsa.frontend.pruned.capture.refusals import part
from bppsa.fxpasses.theirs import theirs

SLOTS = "torch._dynamo.variables.object_protocol"
USER_DEFINED = "torch._dynamo.variables.user_defined"


@contextmanager
def meeting() -> Iterator[set[type]]:
    """The classes that are met within. Raises Unsupported where Dynamo is another than we know."""
    met: set[type] = set()
    forget_slots()
    objects, classes = part(USER_DEFINED, "UserDefinedObjectVariable"), part(USER_DEFINED, "UserDefinedClassVariable")
    before = {cls: part(USER_DEFINED, f"{cls.__qualname__}.__init__") for cls in (objects, classes)}

    def of_object(self: Any, value: Any, **kwargs: Any) -> None:
        met.add(type(value))
        theirs(before[objects], self, value, **kwargs)

    def of_class(self: Any, value: Any, **kwargs: Any) -> None:
        met.update(x for x in (value, type(value)) if isinstance(x, type))
        theirs(before[classes], self, value, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(objects, "__init__", of_object))
        stack.enter_context(mock.patch.object(classes, "__init__", of_class))
        yield met


def forget_slots() -> None:
    """Dynamo keeps whether a class has a __bool__ or a __len__, which it may have been given since."""
    cached = getattr(sys.modules.get(SLOTS), "_get_cached_slots", None)
    if cached is not None:
        cached.cache_clear()
