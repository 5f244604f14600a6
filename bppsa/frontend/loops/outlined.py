"""A loop as a call of its own, where the function around it has to be run by Python.

What it reads are arguments, where these are tensors, numbers and containers of such, and else what a function closes
over. The key of the call is then of what the loop itself looks up, and not of all that its module holds.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from bppsa.common.graph import tensors_in
from bppsa.decisions import Decision
from bppsa.errors import Reason, kind_of
from bppsa.frontend.call_log import note
from bppsa.frontend.loops.call import by_pytorch, call
from bppsa.frontend.loops.containers import Copies, are_apart, changeable, is_data, put_back, unpacked
from bppsa.frontend.loops.key import size_of
from bppsa.frontend.loops.state import LoopState
from bppsa.frontend.ordinary import unusual_moment
from bppsa.frontend.state import TABLES
from bppsa.frontend.trials import is_tried
from bppsa.fxpasses.environment.key import SIMPLE
from bppsa.fxpasses.environment.known import known_environment
from bppsa.fxpasses.environment.trail import MISSING
from bppsa.fxpasses.environment.walk import environment_of
from bppsa.fxpasses.reroll.log.lines import loops
from bppsa.fxpasses.reroll.log.numbers import FollowedNumber
from bppsa.fxpasses.reroll.outline.loops import LoopStatement
from bppsa.fxpasses.reroll.outline.reach import is_of_user, reached, within
from bppsa.fxpasses.reroll.outline.split import LoopSplit, attribute, split
from bppsa.fxpasses.reroll.outline.wrappers import DECORATORS, called_only, closed_over, rewrapped
from bppsa.runtime.untraced import untraced

ALIASES = Reason("the loop knows what it changes by two names", mend="give it one")
HELD = "hold tensors, numbers, or lists, tuples and dicts of these in it, and modules under other names"
Replaced = tuple[FunctionType, FunctionType]
FRAMES = {"_getframe", "currentframe"}  # who names one reads the variables of its callers
OF = "__bppsa_of__"  # what a function was made of
LASTING = (nn.Module, FunctionType, ModuleType, type)


@dataclass(frozen=True)
class LoopRoot:
    """function: what looks up what the loop does. variables, attributes: what it is given."""

    function: FunctionType | MethodType
    variables: dict[str, Any]
    attributes: dict[str, Any] = field(default_factory=dict)

    def changes_alone(self, originals: list[Any]) -> bool:
        """Whether what is copied for the loop is known to it by no other way."""
        environment = known_environment(self.function, counts=True)
        if any(id(original) in environment.seen for original in originals):
            # or at the address of what that walk has met and let go since, as nothing is that lives through this one
            environment = environment_of(self.function)
            if any(id(original) in environment.seen for original in originals):
                return False
        given = tensors_in((self.variables, self.attributes))
        return environment.memory.isdisjoint(memory_of(originals)) and are_apart(originals, given)

    def changeable(self, loop: LoopStatement, owner: str, by_others: bool) -> list[Any]:
        """What the loop may change of what it is given. by_others: also what functions that it calls are found to."""
        changed = {attribute(owner, name) for name in loop.changed}
        attributes = {name: value for name, value in self.attributes.items() if name in changed}
        written = loop.written | changed | (loop.rebound if by_others else frozenset())
        return changeable(self.variables | attributes, written)


class Outlines:
    """Functions with their loops as calls of their own, each made when it is asked for. kinds: classes whose methods
    they may call, the first of which tells whose they are."""

    def __init__(self, state: LoopState, kinds: Sequence[type]) -> None:
        self.state, self.kinds = state, kinds
        self.known: MutableMapping[FunctionType, FunctionType | None] = WeakKeyDictionary()

    def of(self, function: FunctionType, depth: int = DECORATORS) -> FunctionType | None:
        """None where neither it has such a loop nor what its decorators, or it, may call. Dynamo, which would not see
        what these read, leaves it alone."""
        if function not in self.known:
            self.known[function] = None  # while it is made
            self.known[function] = self.made(function, depth)
        return self.known[function]

    def made(self, function: FunctionType, depth: int) -> FunctionType | None:
        if any(FRAMES & set(code.co_names) for each in reached(function, self.kinds) for code in within(each.__code__)):
            return None
        found = split(function)
        if found is not None and (found.loops or self.leads(function)):
            return made_of(function, untraced(found.around(Outlined(found, self))))
        inner = {name: self.of(each, depth - 1) for name, each in called_only(function).items() if depth}
        others = {name: each for name, each in inner.items() if each is not None}
        if not others:
            return None
        held = closed_over(function)
        return made_of(
            function, rewrapped(function, others), {name: (held[name], each) for name, each in others.items()}
        )

    def leads(self, function: FunctionType) -> bool:
        """Whether it may call a function that has such a loop."""
        others = (each for each in reached(function, self.kinds) if each is not function and loops(each.__code__))
        found = (split(each) for each in others if not is_passing(each))
        return any(each is not None and each.loops for each in found)

    def called(self, function: Any) -> Any:
        """What is called in the place of a function or a method."""
        plain = function.__func__ if type(function) is MethodType else function
        if type(plain) is not FunctionType:
            return function
        made = self.known.get(plain, plain)
        if made is plain:
            is_near = any(is_of_user(each, self.kinds) for each in (plain, *closed_over(plain).values()))
            made = self.of(plain) if is_near and not is_passing(plain) else None
            self.known[plain] = made
        return function if made is None else in_place_of(function, made)


def made_of(function: FunctionType, made: FunctionType, replaced: Mapping[str, Replaced] | None = None) -> Any:
    """Notes what a function was made of. replaced: what the function closes over, and what stands there in what was
    made."""
    setattr(made, OF, (function.__code__, replaced or {}))
    return made


def in_place_of(function: Any, made: FunctionType) -> Any:
    """What was made of a function or a method, with the defaults that it has by now; the function itself where its code
    is another, as a notebook that reloads gives it, or what it closes over."""
    plain = getattr(function, "__func__", function)
    code, replaced = getattr(made, OF)
    held = closed_over(plain) if replaced else {}
    stands = (held.get(name) is each and in_place_of(each, other) is other for name, (each, other) in replaced.items())
    if code is not plain.__code__ or not all(stands):
        return function
    made.__defaults__, made.__kwdefaults__ = plain.__defaults__, plain.__kwdefaults__
    return MethodType(made, function.__self__) if isinstance(function, MethodType) else made


def is_passing(function: FunctionType) -> bool:
    """Whether it is made anew in each call of the function that it stands in."""
    return "<locals>" in function.__qualname__ and bool(function.__closure__) and not closed_over(function)


class Outlined:
    """The loops of one function; `run` is what it calls in their places, and it asks `called` what else it calls."""

    unbound = object()  # of a variable that has no value behind a loop

    def __init__(self, split: LoopSplit, outlines: Outlines) -> None:
        self.split, self.state, self.called = split, outlines.state, outlines.called
        self.plain: Callable[[int, tuple[str, ...]], FunctionType] = cache(split.plain)

    @staticmethod
    def counters(steps: range) -> tuple[int, int, int]:
        """What a loop goes over, as numbers that it is given."""
        return steps.start, steps.stop, steps.step

    @untraced
    def run(self, index: int, variables: dict[str, Any]) -> tuple[Any, ...]:
        """The values, behind the loop, of the variables that it binds."""
        loop = self.split.loops[index]
        values = {name: variables[name] for name in loop.names if name in variables}
        plain = self.plain(index, tuple(values))
        if is_tried():
            return self.bound(loop, plain(**values))
        state = self.state.part((self.split.source.function, index))
        state.look_at(size_of(values))
        if state.is_closed:
            return self.bound(loop, by_pytorch(partial(plain, **values), state.last))
        if reason := unusual_moment():
            return self.bound(loop, self.by_pytorch(plain, values, loop, state, reason))
        root = self.root(index, values, state)
        originals = root.changeable(loop, self.split.owner, state.writes) if root is not None else []
        if root is None or not root.changes_alone(originals):
            reason = ALIASES if root is not None else holds_others(plain, values)
            return self.bound(loop, self.by_pytorch(plain, values, loop, state, reason))
        others = {name: value for name, value in values.items() if name not in root.variables}
        run = partial(on_copies, plain, root.function, others, loop.bound, originals)
        made, contents = call(root.function, run, state, (root.variables, root.attributes), {})
        put_back(originals, contents)
        return self.bound(loop, unpacked(originals, made))

    def by_pytorch(
        self, plain: FunctionType, values: dict[str, Any], loop: LoopStatement, state: LoopState, reason: Reason
    ) -> dict[str, Any]:
        place = f"{plain.__code__.co_filename}:{loop.statement.lineno}"
        note(Decision(state.path, "loop", "pytorch", str(replace(reason, path=place))))
        found: dict[str, Any] = plain(**values)
        return found

    def bound(self, loop: LoopStatement, made: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(made.get(name, self.unbound) for name in loop.bound)

    def root(self, index: int, values: dict[str, Any], state: LoopState) -> LoopRoot | None:
        """None where what the loop looks up cannot be told."""
        given = {name: value for name, value in values.items() if is_data(value)}
        held = {name: value for name, value in values.items() if name not in given}
        passed: dict[str, Any] = {}
        owner = held.pop(self.split.owner, None)
        if owner is None:
            function = self.closed(index, tuple(given), held, state)
            return function and LoopRoot(function, given)
        attributes = attributes_of(self.split.loops[index], owner)
        if attributes is None:
            function = self.closed(index, (self.split.owner, *given), held, state)
            return function and LoopRoot(MethodType(function, owner), given)
        for name, value in attributes.items():
            kept = passed if is_data(value) and not isinstance(value, (list, dict)) else held
            kept[attribute(self.split.owner, name)] = value
        function = self.closed(index, (*given, *passed), held, state)
        return function and LoopRoot(function, given, passed)

    def closed(self, index: int, names: tuple[str, ...], held: dict[str, Any], state: LoopState) -> FunctionType | None:
        """The same object for the same held ones that last, as its environment is remembered. None where one of them is
        bound by the loop as well."""
        key = (names, *((name, id(value)) for name, value in held.items()))
        function = state.roots.get(key) or self.split.closed(index, names, held)
        if all(isinstance(value, LASTING) for value in held.values()):
            state.roots.keep(key, function)
        return function if set(held) <= {*function.__code__.co_freevars} else None


def holds_others(plain: FunctionType, values: dict[str, Any]) -> Reason:
    """Why what the loop looks up cannot be told: it binds a variable that holds no data."""
    stored = {i.argval for i in dis.get_instructions(plain) if i.opname.startswith("STORE_")}
    held = sorted(name for name, value in values.items() if not is_data(value) and name in stored)
    kinds = ", ".join(f"{name}, which holds {kind_of(values[name])}" for name in held)
    return Reason(f"binds {kinds or 'what holds modules'}", mend=HELD)


def attributes_of(loop: LoopStatement, owner: Any) -> dict[str, Any] | None:
    """The attributes that the loop looks up, by name; None where one is a method, which may look up others, or is
    computed."""
    if loop.attributes is None or not all(is_held(owner, name) for name in loop.attributes):
        return None
    return {name: getattr(owner, name) for name in loop.attributes}


def is_held(owner: Any, name: str) -> bool:
    """Whether it is there as it is: a property would run once more than it does without us, and may draw."""
    own, of_class = getattr(owner, "__dict__", {}), inspect.getattr_static(type(owner), name, MISSING)
    if of_class is not MISSING:  # a default, before which goes what the object has; a property goes before that
        is_property = hasattr(type(of_class), "__set__") or hasattr(type(of_class), "__delete__")
        return not is_property and (name in own or isinstance(of_class, SIMPLE))
    return not hasattr(type(owner), name) and (name in own or any(name in own.get(table, ()) for table in TABLES))


def on_copies(
    plain: FunctionType,
    closed: FunctionType | MethodType,
    others: dict[str, Any],
    bound: tuple[str, ...],
    originals: list[Any],
    variables: dict[str, Any],
    attributes: dict[str, Any],
) -> tuple[dict[str, Any], list[Any]]:
    """Runs a loop on copies of `originals`. What it binds, and what has become of the copies. closed: takes attributes
    too, where these are followed and the owner has others."""
    copies = Copies(originals)
    values = {name: copies.of(value) for name, value in variables.items()}
    own = {name: copies.of(value) for name, value in attributes.items()}
    follows = any(value is not own[name] or type(value) is FollowedNumber for name, value in attributes.items())
    try:
        found = closed(**values, **own) if follows else plain(**values, **others)
    except BaseException:  # an interrupt too: what the loop has done so far is there for who goes on
        put_back(originals, copies.contents())
        raise
    return {name: copies.packed(found[name]) for name in bound if name in found}, copies.contents()


def memory_of(values: Any) -> list[int]:
    return [tensor.untyped_storage().data_ptr() for tensor in tensors_in(values)]
