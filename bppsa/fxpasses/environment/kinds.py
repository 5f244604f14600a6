"""What a walk does with objects of some kinds of Python's and numpy's: a function of the environment each."""

from __future__ import annotations

import array
import contextvars
import ctypes
import logging
import types
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy
from torch import Tensor

from bppsa.fxpasses.environment import trail

if TYPE_CHECKING:
    from bppsa.fxpasses.environment.walk import Environment

OF_LOGGERS = {"parent", "manager", "_cache"}  # which know all others, or are filled by each question
VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def of_logger(environment: Environment, logger: logging.Logger) -> None:
    """Of Python's own all but the tree of loggers, which each knows."""
    if type(logger) not in (logging.Logger, logging.RootLogger):
        environment.visit_object(logger)
        return
    environment.visit_address(logger)
    environment.visit_equal(lambda held: (held.getEffectiveLevel(), held.manager.disable), logger)
    environment.trail.add(lambda held: [*own_of(held).values()], logger)
    environment.visit_items(own_of(logger))


def own_of(logger: logging.Logger) -> dict[str, Any]:
    return {name: value for name, value in vars(logger).items() if name not in OF_LOGGERS}


def of_stream_handler(environment: Environment, handler: logging.StreamHandler[Any]) -> None:
    """All but what it writes to, which has no say in a call."""
    environment.visit_address(handler)
    environment.trail.add(trail.OfObject(()), handler)
    environment.visit_items({name: value for name, value in vars(handler).items() if name != "stream"})
    environment.lookups.enter_classes(type(handler))


def of_c_method(environment: Environment, method: Any) -> None:
    """One of an object, as `table.get` is. A function in C has a Python module or nothing."""
    held = method.__self__
    if held is None or isinstance(held, (types.ModuleType, type, Tensor)):
        environment.visit_object(method)
        return
    environment.parts.append(method.__name__)
    environment.visit(held)


def of_array(environment: Environment, value: Any) -> None:
    if not value.dtype.hasobject:
        environment.visit_equal(lambda held: (held.dtype, held.shape, held.tobytes()), value)
    elif value.dtype == object:
        environment.trail.add(lambda held: held.flatten().tolist(), value)
        environment.visit_all(value.flatten().tolist())
    else:
        unknown(environment, value)


def of_masked_array(environment: Environment, value: numpy.ma.MaskedArray) -> None:
    def read(held: Any) -> Any:
        return held.dtype, held.shape, held.data.tobytes(), numpy.ma.getmaskarray(held).tobytes(), repr(held.fill_value)

    environment.visit_equal(read, value)


def of_ufunc(environment: Environment, function: numpy.ufunc) -> None:
    """numpy's own, or one made of a function that it does not show."""
    known = getattr(numpy, function.__name__, None) is function
    environment.visit_address(function) if known else unknown(environment, function)


def unknown(environment: Environment, value: Any) -> None:
    """What may hold anything is never seen to be as it was."""
    environment.visit_equal(lambda held: object(), value)


KINDS: Mapping[type, Callable[[Environment, Any], None]] = {
    contextvars.ContextVar: lambda environment, value: environment.visit_read(lambda held: held.get(None), value),
    weakref.ref: lambda environment, value: environment.visit_read(lambda held: held(), value),
    **dict.fromkeys((types.BuiltinMethodType, types.MethodWrapperType), of_c_method),
    **dict.fromkeys(VIEWS, lambda environment, value: environment.visit(value.mapping)),
    **dict.fromkeys((numpy.ndarray, numpy.generic), of_array),
    numpy.ma.MaskedArray: of_masked_array,
    numpy.ufunc: of_ufunc,
    **dict.fromkeys(
        (array.array, bytearray, memoryview, ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union),
        lambda environment, value: environment.visit_equal(lambda v: memoryview(v).tobytes(), value),
    ),
    logging.Logger: of_logger,
    logging.StreamHandler: of_stream_handler,
}
ALL_OF_THEM = {logging.Logger, logging.StreamHandler}  # whose visits leave nothing out that counts
