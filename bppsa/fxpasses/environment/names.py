"""Which names a function looks up outside itself, and what else of a class or a Python module may run or be read."""

from __future__ import annotations

import dis
import functools
import re
import types
from collections.abc import Iterator, Set
from typing import Any

import torch
from torch import nn

BY_STRING = {"getattr", "hasattr", "attrgetter", "methodcaller"}  # who names them looks up what no code names
FROM_TEXT = BY_STRING | {"eval", "exec", "globals"}
# Ops that read a name of a function's own Python module, and those that read one of an object.
OF_GLOBALS = {f"{what}_{kind}" for what in ("LOAD", "STORE", "DELETE") for kind in ("GLOBAL", "NAME")}
OF_OBJECTS = {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "LOAD_SUPER_ATTR", "IMPORT_NAME", "IMPORT_FROM"}
ADDS = {("BINARY_OP", "+="), ("BINARY_OP", "-=")}
PASSED_OVER = {"EXTENDED_ARG", "CACHE", "NOP"}
PATTERNS = "__match_args__"  # stands for all that a `case Class(...)` reads
CONSTRUCTS = {"__init__", "__new__", "__post_init__"}
RUN_BY_AUTOGRAD = {"forward", "backward", "setup_context", "vjp", "jvp"}
FUNCTIONS = (types.FunctionType, staticmethod, classmethod, property)
KEPT = 8192  # functions of which something is known: a model of a large package leads to thousands
DATA = (int, float, complex, str, bytes, type(None), tuple, list, dict, set)


@functools.lru_cache(maxsize=256)
def instructions_of(code: types.CodeType) -> tuple[dis.Instruction, ...]:
    """Those of a function itself. Several questions are asked about each function one after the other."""
    return tuple(dis.get_instructions(code))


def globals_read(code: types.CodeType) -> set[str]:
    """The names that a function itself reads in its Python module, or among the builtins."""
    return {instruction.argval for instruction in instructions_of(code) if instruction.opname == "LOAD_GLOBAL"}


@functools.lru_cache(maxsize=KEPT)
def global_names(code: types.CodeType) -> tuple[str, ...]:
    """The names a function, and the functions inside it, look up outside themselves."""
    return tuple(dict.fromkeys(name for inner in codes(code) for name in (*inner.co_names, *by_string(inner))))


@functools.lru_cache(maxsize=KEPT)
def names_in_module(code: types.CodeType) -> tuple[str, ...]:
    """The names that may be looked up in the function's Python module."""
    elsewhere = read_by_none_but(code, OF_OBJECTS)  # once: of a long function with many names it takes long
    return tuple(name for name in global_names(code) if name not in elsewhere)


@functools.lru_cache(maxsize=KEPT)
def names_of_objects(code: types.CodeType) -> frozenset[str]:
    """The names that may be attributes of something."""
    found = set(global_names(code)) - read_by_none_but(code, OF_GLOBALS)
    matches = any(i.opname == "MATCH_CLASS" for inner in codes(code) for i in instructions_of(inner))
    return frozenset(found | {PATTERNS} if matches else found)


@functools.lru_cache(maxsize=KEPT)
def counted_names(code: types.CodeType) -> frozenset[str]:
    """The attributes that it does nothing with but `self.calls += 1`, which no number but their own depends on."""
    met: dict[str, int] = {}
    counted: dict[str, int] = {}
    for inner in codes(code):
        instructions = [each for each in instructions_of(inner) if each.opname not in PASSED_OVER]
        for each in instructions:
            if each.opcode in dis.hasname:
                met[str(each.argval)] = met.get(str(each.argval), 0) + 1
        for at in range(len(instructions) - 4):
            if counts(*instructions[at : at + 5]):
                name = str(instructions[at].argval)
                counted[name] = counted.get(name, 0) + 2
    by_text = {name for inner in codes(code) for name in by_string(inner)}
    return frozenset(name for name, times in counted.items() if met[name] == times) - by_text


def counts(
    load: dis.Instruction, number: dis.Instruction, add: dis.Instruction, swap: dis.Instruction, store: dis.Instruction
) -> bool:
    """Whether these five add a whole number to an attribute, in the place of what stood there."""
    names = load.opname == "LOAD_ATTR" and store.opname == "STORE_ATTR" and load.argval == store.argval
    adds = add.opname in ("INPLACE_ADD", "INPLACE_SUBTRACT") or (add.opname, add.argrepr) in ADDS
    constant = number.opname in ("LOAD_CONST", "LOAD_SMALL_INT") and type(number.argval) is int
    return names and adds and constant and swap.opname in ("SWAP", "ROT_TWO")


def read_by_none_but(code: types.CodeType, ops: Set[str]) -> set[str]:
    """Names that no other ops than these read; an op that is not known may read them anywhere."""
    read: dict[str, set[str]] = {}
    for inner in codes(code):
        for instruction in instructions_of(inner):
            if instruction.opcode in dis.hasname:
                read.setdefault(str(instruction.argval), set()).add(instruction.opname)
    by_text = {name for inner in codes(code) for name in by_string(inner)}
    return {name for name, readers in read.items() if readers <= ops} - by_text


def by_string(code: types.CodeType) -> Iterator[str]:
    """What it may look up as `getattr(self, "name")`, or as a part of a text that is run."""
    if not FROM_TEXT.isdisjoint(code.co_names):
        for constant in code.co_consts:
            if isinstance(constant, str):
                yield from re.findall(r"[^\W\d]\w*", constant)


@functools.lru_cache(maxsize=KEPT)
def imported_names(code: types.CodeType) -> tuple[str, ...]:
    """The Python modules that they import, by their whole names."""
    found = (i.argval for inner in codes(code) for i in instructions_of(inner) if i.opname == "IMPORT_NAME")
    return tuple(dict.fromkeys(found))


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def unnamed(space: Any, names: Set[str], constructed: bool) -> set[str]:
    """Names of a class, a Python module or a tensor that no code has to spell. names: those that some code does.
    constructed: whether code has the class itself, and may make an object of it.

    Operators, `with`, `for` and calls run methods such as `__enter__`; a computed name may be that of any data.
    """
    makes = constructed and not (isinstance(space, type) and issubclass(space, nn.Module))
    computed = not BY_STRING.isdisjoint(names)
    of_autograd = isinstance(space, type) and issubclass(space, torch.autograd.Function)
    found = RUN_BY_AUTOGRAD & vars(space).keys() if of_autograd else set()
    for name, value in vars(space).items():
        if name.startswith("__") and name.endswith("__"):
            if isinstance(value, FUNCTIONS) and (makes or name not in CONSTRUCTS):
                found.add(name)
        elif computed and isinstance(value, DATA):
            found.add(name)
    return found
