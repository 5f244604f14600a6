"""The kernel language: what one sweep over time does at each point, as data.

A `Kernel` runs over T steps and B rows. A step is a list of `Group`s, run in order. A group covers `width` columns j;
for every row b and column j it evaluates expressions made of loads, constants, pointwise ops and dot products, and
only then commits its stores. The columns may be several axes, row-major; an access then moves along each by a stride
of its own. `interpret.py` is the definition of all this; the printers must agree with it.
"""

from __future__ import annotations

import enum
import os
import threading
import weakref
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar


class Op(enum.Enum):
    """Value: the number of operands. Truth values are reals: 0.0 is false, anything else is true."""

    LOAD = ("load", 0)
    CONST = ("const", 0)
    DOT = ("dot", 0)
    ADD = ("add", 2)
    SUB = ("sub", 2)
    MUL = ("mul", 2)
    DIV = ("div", 2)
    MAX = ("max", 2)  # NaN in either operand gives NaN, as torch.maximum does
    MIN = ("min", 2)
    NEG = ("neg", 1)
    ABS = ("abs", 1)
    EXP = ("exp", 1)
    LOG = ("log", 1)
    SQRT = ("sqrt", 1)
    TANH = ("tanh", 1)
    SIGMOID = ("sigmoid", 1)
    ERF = ("erf", 1)
    SIN = ("sin", 1)
    COS = ("cos", 1)
    ATAN = ("atan", 1)
    FLOOR = ("floor", 1)
    FMOD = ("fmod", 2)  # what is left of a / b by whole numbers, exact, with the sign of a
    EXPONENT = ("exponent", 1)  # floor(log2 |x|), as far as LDEXP takes it; 0 where x is subnormal or not finite
    LDEXP = ("ldexp", 2)  # x * 2**n for whole n whose power of two is a normal number, and so is its reciprocal
    ERFC = ("erfc", 1)
    ERFCX = ("erfcx", 1)  # e^(x^2) erfc(x)
    ERFINV = ("erfinv", 1)
    NDTRI = ("ndtri", 1)  # the normal distribution's quantile
    LGAMMA = ("lgamma", 1)  # log |gamma(x)|
    DIGAMMA = ("digamma", 1)
    ZETA = ("zeta", 2)  # Hurwitz: the sum of (b + k)^-a, k = 0, 1, ...
    I0E = ("i0e", 1)  # e^-|x| times the modified Bessel function
    I1E = ("i1e", 1)
    LT = ("lt", 2)
    LE = ("le", 2)
    EQ = ("eq", 2)
    WHERE = ("where", 3)

    @property
    def arity(self) -> int:
        return self.value[1]


STRUCTURAL = frozenset({Op.LOAD, Op.CONST, Op.DOT})
# Computed one number at a time, and by no GPU's kernel yet.
SPECIAL = frozenset({Op.ERFC, Op.ERFCX, Op.ERFINV, Op.NDTRI, Op.LGAMMA, Op.DIGAMMA, Op.ZETA, Op.I0E, Op.I1E})
EXPENSIVE = SPECIAL | {
    Op.DOT,
    Op.EXP,
    Op.LOG,
    Op.TANH,
    Op.SIGMOID,
    Op.ERF,
    Op.DIV,
    Op.SQRT,
    Op.SIN,
    Op.COS,
    Op.ATAN,
    Op.FMOD,
}


class Kind(enum.Enum):
    """What a buffer's rows stand for, and so its shape; n is the buffer's width."""

    STREAM = "stream"  # [T, B, n]: one row a step
    STATE = "state"  # [T+1, B, n]: rows between steps; `Access.after` tells which side of the step
    RUNNING = "running"  # [B, n]: a load reads what the previous step stored; holds the final value at the end
    SCRATCH = "scratch"  # [B, n]: lives within a step; the printers own its storage
    VECTOR = "vector"  # [n]: the same for every row and step
    WEIGHT = "weight"  # [K, n]: right operand of dot products
    COLUMN_SUM = "column_sum"  # [n]: the sum over all rows and steps of what is stored into it

    __hash__ = object.__hash__  # Enum's own is a function of Python's, and a call looks up some ten


Shape = tuple[int, ...]  # shares its name: a tensor's sizes too, here of a group's columns
Strides = tuple[int, ...]  # in columns, one for each axis


@dataclass(frozen=True)
class Buffer:
    """A tensor the kernel is given, or scratch of its own; `kind` says its shape."""

    name: str
    kind: Kind
    width: int
    depth: int = 1  # K, of a WEIGHT


@dataclass(frozen=True)
class Access:
    """Element (t, b, j) of a group touches column `column + j` (or just `column` when `broadcast`) of row (t, b).

    With strides, one for each axis of the group, element (t, b, j_0, j_1, ...) touches `column + sum_a j_a strides[a]`.
    """

    buffer: str
    column: int = 0
    broadcast: bool = False
    after: bool = False  # STATE only: the row on the far side of the step, in the recurrence's own direction
    strides: Strides = ()


@dataclass(frozen=True)
class Dot:
    """sum_k source[row, k] * weight[k, column + j], k < depth of the weight; `source` starts at its own column, and is
    no broadcast of it where there are more of them."""

    source: Access
    weight: str
    column: int = 0


NO_MOVES: frozenset[Strides] = frozenset()
LONGEST_TEXT = 2000  # characters of an expression that is printed


def moves_of(args: tuple[Expr, ...], payload: Access | Dot | float | None) -> frozenset[Strides]:
    if not args:
        moves = isinstance(payload, Access) and not payload.broadcast
        return frozenset((payload.strides,)) if moves and isinstance(payload, Access) else NO_MOVES
    first, *rest = args
    found = first.moves
    for arg in rest:  # mostly they are the same
        found = found if arg.moves <= found else found | arg.moves
    return found


class Expr:
    """A node of the expression DAG. Interned: equal expressions are one object, so comparing and hashing are cheap.

    uniform: whether it is the same for every column; moves: the strides of all loads in it that are not; multiplies:
    whether there is a dot product in it. What asks for these would else go over all of a formula of thousands of nodes.
    """

    __slots__ = ("__weakref__", "args", "moves", "multiplies", "op", "payload", "uniform")
    op: Op
    args: tuple[Expr, ...]
    payload: Access | Dot | float | None
    uniform: bool
    moves: frozenset[Strides]
    multiplies: bool
    _interned: ClassVar[weakref.WeakValueDictionary[tuple, Expr]] = weakref.WeakValueDictionary()
    _interning: ClassVar[threading.Lock] = threading.Lock()

    def __new__(cls, op: Op, *args: Expr, payload: Access | Dot | float | None = None) -> Expr:
        key = (op, args, repr(payload) if isinstance(payload, float) else payload)
        with cls._interning:
            found = cls._interned.get(key)
            if found is None:
                found = super().__new__(cls)
                found.op, found.args, found.payload = op, args, payload
                found.multiplies = op is Op.DOT or any(arg.multiplies for arg in args)
                found.moves = moves_of(args, payload)
                found.uniform = not (found.moves or found.multiplies)
                cls._interned[key] = found
            return found

    @classmethod
    def renew_lock(cls) -> None:
        """In a forked child, where the thread that held it does not exist."""
        cls._interning = threading.Lock()

    def __repr__(self) -> str:
        """Cut off where it is deep: an expression may be of thousands of nodes."""
        shown: dict[Expr, str] = {}
        for node in topological((self,)):
            inner = ", ".join(shown[arg] for arg in node.args) if node.args else repr(node.payload)
            shown[node] = f"{node.op.value[0]}({inner if len(inner) < LONGEST_TEXT else '...'})"
        return shown[self]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Expr.renew_lock)


def load(access: Access) -> Expr:
    return Expr(Op.LOAD, payload=access)


def const(value: float) -> Expr:
    return Expr(Op.CONST, payload=float(value))


def dot(term: Dot) -> Expr:
    return Expr(Op.DOT, payload=term)


class Reduce(enum.Enum):
    """How a store folds its values. COLUMNS goes with a COLUMN_SUM target, ROWS and MAX with a SCRATCH.

    A target with strides keeps the axes along which it moves, and the fold runs over the others; without strides it
    runs over all columns, and one number is left.
    """

    NONE = "none"
    ROWS = "rows"  # the sum over columns of a row
    MAX = "max"  # the largest of a row, NaN if there is one
    COLUMNS = "columns"  # the sum over all rows and steps, and over axes along which the target does not move


FOLDS = frozenset({Reduce.ROWS, Reduce.MAX})  # of columns of a row


@dataclass(frozen=True)
class Store:
    """`value`, computed for every column of the group, goes to `target` when all loads of the group are done."""

    target: Access
    value: Expr
    reduce: Reduce = Reduce.NONE


@dataclass(frozen=True)
class Group:
    """Stores over columns 0 to `width`, computed together. shape: of several axes, `width` columns in all; () for one
    along which every access moves by one or not at all."""

    width: int
    stores: tuple[Store, ...]
    shape: Shape = ()

    def nodes(self) -> tuple[Expr, ...]:
        """Every expression of the group once, operands before users."""
        return topological(store.value for store in self.stores)

    @property
    def dots(self) -> tuple[Dot, ...]:
        return tuple(node.payload for node in self.nodes() if isinstance(node.payload, Dot))


@dataclass(frozen=True)
class Kernel:
    """One sweep. `along`: in the recurrence's own direction of time (a forward pass), else against it (a backward
    pass).

    With the run-time number `columns` so many rows of every RUNNING and SCRATCH buffer share one row of all others: the
    columns of a matrix that one sample's steps are applied to. Then nothing but RUNNING and SCRATCH may be stored.

    With the run-time flag `reverse` the recurrence itself runs from T-1 to 0; STATE rows before and after a step t are
    then t+1 and t, otherwise t and t+1.
    """

    name: str
    buffers: tuple[Buffer, ...]
    groups: tuple[Group, ...]
    along: bool = True

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)

    @cached_property
    def arguments(self) -> tuple[Buffer, ...]:
        """The buffers a caller passes, in order."""
        return tuple(b for b in self.buffers if b.kind is not Kind.SCRATCH)


def topological(roots: Iterable[Expr], known: Container[Expr] = ()) -> tuple[Expr, ...]:
    """All expressions that the roots are made of, operands before users, by a stack: formulas may be thousands deep.
    known: those that are left out, with what they are made of."""
    order: dict[Expr, None] = {}
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                order.setdefault(node)
            elif node not in order and node not in known:
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(node.args))
    return tuple(order)


def contiguous(shape: Shape) -> Strides:
    """The strides of a value whose elements stand one after the other, the last axis innermost."""
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return tuple(reversed(strides))


def span(access: Access, width: int, shape: Shape = ()) -> tuple[int, int]:
    """The columns [start, stop) among which a group's elements touch some."""
    if access.broadcast:
        return access.column, access.column + 1
    if not access.strides:
        return access.column, access.column + width
    moves = [stride * (size - 1) for stride, size in zip(access.strides, shape, strict=True)]
    return access.column + sum(min(m, 0) for m in moves), access.column + sum(max(m, 0) for m in moves) + 1


def accessed(groups: Iterable[Group]) -> set[str]:
    """The names of all buffers that `groups` touch."""
    groups = tuple(groups)
    return {store.target.buffer for group in groups for store in group.stores} | read_by(groups)


def read_by(groups: Iterable[Group]) -> set[str]:
    """The names of the buffers that `groups` load from or multiply with."""
    found = set()
    for payload in (node.payload for group in groups for node in group.nodes()):
        if isinstance(payload, Dot):
            found |= {payload.source.buffer, payload.weight}
        elif isinstance(payload, Access):
            found.add(payload.buffer)
    return found


def rewrite(root: Expr, replace: Callable[[Expr], Expr | None], done: dict[Expr, Expr] | None = None) -> Expr:
    """`root` with every expression for which `replace` gives another one exchanged, outermost first. done: what came of
    others, where `replace` has not changed since."""
    done = {} if done is None else done
    stack = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if node in done:
            continue
        if ready:
            done[node] = Expr(node.op, *(done[arg] for arg in node.args), payload=node.payload)
        elif (new := replace(node)) is not None:
            done[node] = new
        else:
            stack.append((node, True))
            stack.extend((arg, False) for arg in node.args)
    return done[root]
