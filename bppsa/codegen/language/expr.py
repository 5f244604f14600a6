"""Expressions of the kernel language: what a group evaluates for every row and column."""

from __future__ import annotations

import enum
import threading
import weakref
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import ClassVar

from bppsa.common.process.forks import renewed_in_children


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
Shape = tuple[int, ...]  # shares its name: a tensor's sizes too, here of a group's columns
Strides = tuple[int, ...]  # in columns, one for each axis


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
        cls._interning = threading.Lock()

    def __repr__(self) -> str:
        """Cut off where it is deep: an expression may be of thousands of nodes."""
        shown: dict[Expr, str] = {}
        for node in topological((self,)):
            inner = ", ".join(shown[arg] for arg in node.args) if node.args else repr(node.payload)
            shown[node] = f"{node.op.value[0]}({inner if len(inner) < LONGEST_TEXT else '...'})"
        return shown[self]


renewed_in_children(Expr)


def load(access: Access) -> Expr:
    return Expr(Op.LOAD, payload=access)


def const(value: float) -> Expr:
    return Expr(Op.CONST, payload=float(value))


def dot(term: Dot) -> Expr:
    return Expr(Op.DOT, payload=term)


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


def span(access: Access, width: int, shape: Shape) -> tuple[int, int]:
    """The columns [start, stop) among which a group's elements touch some."""
    if access.broadcast:
        return access.column, access.column + 1
    if not access.strides:
        return access.column, access.column + width
    moves = [stride * (size - 1) for stride, size in zip(access.strides, shape, strict=True)]
    return access.column + sum(min(m, 0) for m in moves), access.column + sum(max(m, 0) for m in moves) + 1


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
