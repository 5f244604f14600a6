"""Whatever a forward could change besides its tensors: read before a run, and again after it.

These are the states of random generators, attributes of the model's modules, the global names and closures of the
user's functions that run, and the lists, dicts, sets and objects that these lead to.
"""

from __future__ import annotations

import dis
import gc
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType
from typing import Any

import numpy as np
from torch import nn

from bppsa.decisions import RECORD, Report, under
from bppsa.fxpasses.environment.key import SIMPLE
from bppsa.fxpasses.environment.libraries import is_users_name
from bppsa.fxpasses.environment.names import globals_read
from bppsa.fxpasses.environment.trail import content, items
from bppsa.fxpasses.lines import innermost, is_users_frame, place_at
from bppsa.fxpasses.network.models import TABLES, caches, is_namespace, state_of
from bppsa.fxpasses.partition.capture.contents import (
    GENERATORS,
    PLAIN,
    READ,
    are_same,
    attributes,
    is_librarys,
    is_object,
    is_space,
    leads,
    reader,
)
from bppsa.fxpasses.partition.capture.lengths import asks_for_length

STATE = (
    "which other stages and the next micro-batch do not see; keep state in buffers, changed in place, and return what "
    "others need"
)
CHANGES = {  # methods that change a container
    *("append", "appendleft", "extend", "insert", "pop", "popleft", "remove", "clear", "add", "discard", "update"),
    *("setdefault", "popitem", "sort", "reverse", "rotate", "__setitem__", "__delitem__", "__setattr__"),
}
WRAPPERS = ("torch._compile", "torch._dynamo.eval_frame")
RANDOM = "which stages would not draw again; draw by torch.rand, randn or rand_like, and choose by torch.where"


@dataclass(frozen=True)
class Watched:
    """read: what is there now; two such are compared element by element."""

    what: str
    read: Callable[[], Sequence[Any]]
    mend: str = STATE


def generators() -> list[Watched]:
    return [
        Watched("Python's random numbers (random)", lambda: [random.getstate()], RANDOM),
        Watched("numpy's random numbers", lambda: [str(np.random.get_state())], RANDOM),
    ]


def generators_in(values: Sequence[Any]) -> list[Watched]:
    found = [(value, READ[base]) for value in values for base in type(value).__mro__ if base in GENERATORS]
    return [Watched("random numbers that it holds", partial(read, value), RANDOM) for value, read in found]


def held(what: str, value: Any, met: dict[int, Any]) -> Iterator[Watched]:
    """What is in a container, a function's defaults, an object or a class of the user's, and in what these lead to, but
    for modules. met: values by their ids, which are not looked into; those that are come to them."""
    todo = [value]
    while todo:
        value = todo.pop()
        if id(value) in met or isinstance(value, (*SIMPLE, nn.Module)) or is_librarys(value):
            continue
        met[id(value)] = value
        read = reader(value)
        if read is not None:
            yield Watched(what, partial(read, value), RANDOM if "andom" in type(value).__module__ else STATE)
        if is_space(value):
            yield Watched(what, partial(bound_in, value))
            todo += bound_in(value) if isinstance(value, type) else ()
        elif is_object(value) or isinstance(value, (*PLAIN, FunctionType)):
            yield Watched(what, partial(attributes, value))
            todo += attributes(value)
        todo += leads(value)


def bound_in(space: Any) -> Sequence[Any]:
    """The names that a class or a Python module binds for others to read, and their values."""
    return items({name: value for name, value in vars(space).items() if not name.startswith("__")})


def of_model(model: nn.Module) -> list[Watched]:
    found: list[Watched] = []
    met = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}  # whose changes stages make
    for path, container, _ in state_of(model):
        owner, _, table = path.rpartition(".")
        if table in TABLES:
            found += names_in(owner, container)
        elif is_namespace(container):
            found += names_in(path, container)
            for key, value in container.items():
                if key not in (*TABLES, RECORD, *caches(container)):
                    found += held(under(path, key), value, met)
    for cls in dict.fromkeys(base for module in model.modules() for base in type(module).__mro__):
        found += held(cls.__name__, cls, met) if is_space(cls) else ()
    return found


def names_in(path: str, names: dict[str, Any]) -> Iterator[Watched]:
    """Attributes of a module, and that there are no others; what it reports of its calls is our own affair, and what
    repeats its weights is PyTorch's."""
    left_out = {RECORD, *caches(names)}

    def theirs() -> list[str]:
        return [name for name, value in names.items() if name not in left_out and not isinstance(value, Report)]

    for name in theirs():
        yield Watched(under(path, name), partial(lambda name: [names.get(name)], name))
    yield Watched(f"which attributes {path or 'the model'} has", theirs)


class Functions:
    """The user's functions that run in a block, by what they could change.

    asked: for functions that the user's code calls, by themselves where they are built in and by their code otherwise,
    what to do with the line. lengths: the global names of functions that ask for `len`. outside: names of globals and
    closures, and what gives their values. found: what these were when a function was first called. rebound: variables
    of outer functions that were bound anew, with the line.
    """

    def __init__(self, asked: Mapping[Any, Callable[[str], None]]) -> None:
        self.asked = asked
        self.found: list[tuple[Watched, Sequence[Any]]] = []
        self.outside: list[tuple[str, Callable[[], Any]]] = []
        self.rebound: dict[str, str] = {}
        self.codes: set[CodeType] = set()
        self.lengths: list[dict[str, Any]] = []
        self.met: dict[int, Any] = {}
        self.cells: dict[FrameType, dict[str, Any]] = {}

    @contextmanager
    def watched(self, base: FrameType) -> Iterator[None]:
        """base: the frame that runs the block."""
        before: Any = sys.getprofile()
        self.base = base
        sys.setprofile(self.event)
        try:
            yield
        finally:
            if hasattr(before, "enable"):
                before.enable()  # cProfile's, which is no function
            else:
                sys.setprofile(before)
            self.cells.clear()

    def event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            if self.is_known(arg) and is_near(frame):
                self.asked[arg](innermost([(frame, frame.f_lineno)]))
        elif event == "call":
            caller = caller_of(frame) if frame.f_code in self.asked else None
            if caller is not None and is_near(caller):
                self.asked[frame.f_code](innermost([(caller, caller.f_lineno)]))
            self.called(frame)
        elif event == "return" and frame in self.cells:
            for name, value in self.cells.pop(frame).items():
                if not are_same([frame.f_locals.get(name)], [value]):
                    self.rebound[name] = line_of_store(frame.f_code, name)

    def names(self) -> frozenset[str]:
        """All that they look up, also by getattr."""
        of_codes = (code.co_names + tuple(c for c in code.co_consts if isinstance(c, str)) for code in self.codes)
        return frozenset(name for names in of_codes for name in names)

    def is_known(self, function: Any) -> bool:
        return isinstance(function, BuiltinFunctionType) and function in self.asked

    def called(self, frame: FrameType) -> None:
        code = frame.f_code
        if not is_users_frame(frame):
            return
        if code not in self.codes and asks_for_length(code) and not any(frame.f_globals is n for n in self.lengths):
            self.lengths.append(frame.f_globals)
        if not is_near(frame):
            self.codes.add(code)
            return
        outside = [name for name in code.co_freevars if name in frame.f_locals and not self.is_within(frame, name)]
        if outside:
            self.cells[frame] = {name: frame.f_locals[name] for name in outside}
        if code in self.codes:
            return
        self.codes.add(code)
        here = [*globals_of(frame), *(closure for closure in closures_of(code) if closure[0] in outside)]
        self.outside += here
        for what, value in here:
            for one in (Watched(what, partial(listed, value)), *held(what, value(), self.met)):
                self.found.append((one, one.read()))

    def is_within(self, frame: FrameType, name: str) -> bool:
        """Whether a closure's variable belongs to a call within the block: the forward's own affair."""
        outer = frame.f_back
        while outer is not None and outer is not self.base:
            if name in outer.f_code.co_cellvars:
                return True
            outer = outer.f_back
        return False


def caller_of(frame: FrameType) -> FrameType | None:
    """The caller of a frame, past what torch wraps its functions in, so that Dynamo leaves them alone."""
    caller = frame.f_back
    while caller is not None and caller.f_globals.get("__name__") in WRAPPERS:
        caller = caller.f_back
    return caller


def is_near(frame: FrameType) -> bool:
    """Whether it runs the user's own code; what libraries remember is taken to be their affair."""
    return is_users_frame(frame) and is_users_name(str(frame.f_globals.get("__name__", "")))


def globals_of(frame: FrameType) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The global names that a frame's code reads, also those that are not there and are looked up among the
    builtins."""
    for name in sorted(globals_read(frame.f_code)):
        yield f"the global name {name}", partial(frame.f_globals.get, name)


def closures_of(code: CodeType) -> Iterator[tuple[str, Callable[[], Any]]]:
    """A frame does not know its function: all that have the code are asked."""
    for function in gc.get_referrers(code) if code.co_freevars else ():
        if isinstance(function, FunctionType):
            for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
                yield name, partial(content, cell)


def listed(value: Callable[[], Any]) -> list[Any]:
    return [value()]


def line_of_store(code: CodeType, name: str) -> str:
    """The line on which a function binds a variable of an outer one."""
    line = next((line for line, ops in by_line(code).items() if ("STORE_DEREF", name) in ops), code.co_firstlineno)
    return place_at(code.co_filename, line)


def line_of_change(codes: Iterable[CodeType], what: str) -> str:
    """The line that binds the attribute or global name that a `Watched` is called by, or else changes what stands
    there, as `self.log.append(h)` does, or else reads it; "" where none does."""
    name = what.rpartition(" ")[2].rpartition(".")[2]

    def nearness(ops: set[tuple[str, Any]]) -> tuple[bool, bool]:
        binds = ("STORE_ATTR", name) in ops or ("STORE_GLOBAL", name) in ops
        return binds, any(op == "STORE_SUBSCR" or value in CHANGES for op, value in ops)

    found = [
        (nearness(ops), place_at(code.co_filename, line))
        for code in sorted(codes, key=lambda code: (code.co_filename, code.co_firstlineno))
        for line, ops in by_line(code).items()
        if any(value == name and op.startswith(("LOAD_", "STORE_")) for op, value in ops)
    ]
    return max(found, key=itemgetter(0), default=((), ""))[1]


def by_line(code: CodeType) -> dict[int, set[tuple[str, Any]]]:
    """Python's ops on each line of a function, with what they name."""
    found: dict[int, set[tuple[str, Any]]] = {}
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        # From Python 3.13 on `starts_line` is a bool.
        line = getattr(instruction, "line_number", instruction.starts_line) or line
        found.setdefault(line, set()).add((instruction.opname, instruction.argval))
    return found
