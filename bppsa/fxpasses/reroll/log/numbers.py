"""Numbers of Python's that a call is given, followed through its arithmetic: where nothing but arithmetic reads them,
what ops get of them is an input of the log, and another number is no other kind of call.

In the place of such a number the call gets one that is equal to it and writes down what becomes of it. Whatever else
looks at it (a comparison, a conversion, a text, an op that is not in the table below) is noted: then the number may
decide what is done, and belongs to the kind of call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bppsa.fxpasses.environment.libraries import is_library
from bppsa.fxpasses.environment.names import imported_names
from bppsa.fxpasses.reroll.log.ops import flatten

ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "pow": operator.pow,
    "neg": operator.neg,
    "pos": operator.pos,
    "abs": operator.abs,
}
UNARY = {"neg", "pos", "abs"}
LOOKS = (
    *("eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "int", "float", "trunc", "floor", "ceil", "round", "repr"),
    *("str", "format", "floordiv", "rfloordiv", "mod", "rmod", "divmod", "rdivmod", "getnewargs"),
)
# Functions of torch that hand a number to one op as it is.
TAKING = ("mul", "multiply", "add", "sub", "subtract", "div", "divide", "true_divide", "rsub", "lerp")
COMPARING = ("gt", "lt", "ge", "le", "eq", "ne", "greater", "less")
TAKERS = {
    getattr(space, spelled)
    for space in (torch, Tensor)
    for name in (*TAKING, *COMPARING, "truediv")
    for spelled in (name, f"{name}_", f"__{name}__", f"__r{name}__", f"__i{name}__")
    if hasattr(space, spelled)
}
# Modules whose functions, in C, take what equals a float for one, and nobody hears of it.
HARMLESS = {"torch", "bppsa", "functools", "itertools", "operator", "collections", "typing", "dataclasses", "builtins"}
TELLS_KINDS = {"type", "__class__", "complex", "Tensor", "FloatTensor", "DoubleTensor", "eval", "exec"}


class ArithmeticTerm(NamedTuple):
    """A number that was computed: op, of numbers or places of other terms."""

    op: str
    operands: tuple[Any, ...]


class TermPlace(int):
    """The number of a term among all."""


@dataclass
class Arithmetic:
    """What becomes of the numbers that are followed in one call. terms: all numbers, first those that the call was
    given. looked: whether something that is no arithmetic has read one. used: the terms that arithmetic or an op has
    read."""

    terms: list[ArithmeticTerm] = field(default_factory=list)
    looked: bool = False
    over: bool = False
    used: set[int] = field(default_factory=set)
    known: dict[Any, int] = field(default_factory=dict)
    handed: dict[float, int] = field(default_factory=dict)  # to the op that is about to run: terms by number
    taken: set[float] = field(default_factory=set)  # of those, what it has taken

    @property
    def is_followed(self) -> bool:
        return bool(self.terms) and not self.looked

    @property
    def is_all(self) -> bool:
        """Whether numbers were given, each was read, and nothing but arithmetic has read one: who does not read a
        number that changes may read it elsewhere."""
        given = (i for i, term in enumerate(self.terms) if term.op == "given")
        return self.is_followed and self.used.issuperset(given)

    def enter(self, value: float) -> FollowedNumber:
        self.terms.append(ArithmeticTerm("given", (len(self.terms),)))
        return FollowedNumber.at(value, self, len(self.terms) - 1)

    def computed(self, name: str, operands: Sequence[Any], value: Any) -> Any:
        if self.over or type(value) is not float:
            self.looked = True
            return value
        places = tuple(TermPlace(o.place) if isinstance(o, FollowedNumber) else o for o in operands)
        self.used.update(place for place in places if type(place) is TermPlace)
        key = name, tuple((type(each), repr(each)) for each in places)
        if key not in self.known:
            self.known[key] = len(self.terms)
            self.terms.append(ArithmeticTerm(name, places))
        return FollowedNumber.at(value, self, self.known[key])

    @contextmanager
    def handing(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Iterator[None]:
        """A call of a function of torch's: what it is given of followed numbers has to come to one op as it is."""
        leaves = flatten(args, dict(kwargs))[0]
        found = [leaf for leaf in leaves if type(leaf) is FollowedNumber]
        if not found:
            yield
            return
        self.used.update(leaf.place for leaf in found)
        numbers = [leaf for leaf in leaves if isinstance(leaf, (int, float))]
        if len(numbers) > 1 or func not in TAKERS:
            self.looked = True
            yield
            return
        self.handed = {float.__float__(leaf): leaf.place for leaf in found}
        self.taken = set()
        try:
            yield
        finally:
            self.looked |= self.taken != set(self.handed)
            self.handed = {}

    def values(self, given: Sequence[float]) -> list[float]:
        """The values of all terms. Raises ArithmeticError as Python would."""
        found: list[Any] = []
        for op, operands in self.terms:
            if op == "given":
                found.append(given[operands[0]])
            else:
                found.append(ARITHMETIC[op](*(found[o] if type(o) is TermPlace else o for o in operands)))
        if any(type(value) is not float for value in found):  # as the root of a negative one
            raise ArithmeticError("a power of a number is none of the reals")
        return found


class FollowedNumber(float):
    """A number that is followed."""

    arithmetic: Arithmetic
    place: int

    @classmethod
    def at(cls, value: float, arithmetic: Arithmetic, place: int) -> FollowedNumber:
        made = cls(value)
        made.arithmetic, made.place = arithmetic, place
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.arithmetic.looked = True
        return float, (float.__float__(self),)

    def __deepcopy__(self, memo: Any) -> FollowedNumber:
        return self


def followed(name: str, reflected: bool) -> Callable[..., Any]:
    apply = ARITHMETIC[name]

    def method(self: FollowedNumber, *others: Any) -> Any:
        if any(type(other) not in (int, float, FollowedNumber) for other in others):
            self.arithmetic.looked |= any(isinstance(other, (complex, float, int)) for other in others)
            return NotImplemented
        operands = [*others, self] if reflected else [self, *others]
        return self.arithmetic.computed(name, operands, apply(*map(plain, operands)))

    return method


def looking(name: str) -> Callable[..., Any]:
    own = getattr(float, name)

    def method(self: FollowedNumber, *args: Any) -> Any:
        if not any(isinstance(arg, Tensor) for arg in args):
            self.arithmetic.looked = True
        return own(self, *map(plain, args))

    return method


def plain(value: Any) -> Any:
    return float.__float__(value) if type(value) is FollowedNumber else value


for _name in ARITHMETIC:
    setattr(FollowedNumber, f"__{_name}__", followed(_name, False))
    if _name not in UNARY:
        setattr(FollowedNumber, f"__r{_name}__", followed(_name, True))
for _name in (*(f"__{name}__" for name in LOOKS), "as_integer_ratio", "is_integer", "hex", "conjugate"):
    if hasattr(float, _name):
        setattr(FollowedNumber, _name, looking(_name))
for _name in ("real", "imag"):
    setattr(FollowedNumber, _name, property(looking("conjugate") if _name == "real" else lambda self: 0.0))


def may_read(code: CodeType, names: Mapping[str, Any]) -> bool:
    """Whether a function of the user's names something that could read a number without asking it."""
    if imported_names(code) or any(isinstance(const, str) and "%" in const for const in code.co_consts):
        return True
    return any(is_reader(names[name]) for name in code.co_names if name in names)


def is_reader(value: Any) -> bool:
    if isinstance(value, ModuleType):
        package = value.__name__.partition(".")[0]
    elif isinstance(value, BuiltinFunctionType):
        package = (value.__module__ or "builtins").partition(".")[0].lstrip("_")
    else:
        kind = value if isinstance(value, type) else type(value)
        package = (kind.__module__ or "").partition(".")[0].lstrip("_")
    return package not in HARMLESS and is_library(package)
