"""Print a group's expressions: a C++ function that evaluates them on one vector of columns, for some rows, and stores."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from bppsa.codegen.ir import STRUCTURAL, Access, Dot, Expr, Group, Kernel, Kind, Op, Reduce, Store

CPP: dict[Op, str] = {
    Op.ADD: "{} + {}",
    Op.SUB: "{} - {}",
    Op.MUL: "{} * {}",
    Op.DIV: "{} / {}",
    Op.MAX: "maximum({}, {})",
    Op.MIN: "minimum({}, {})",
    Op.NEG: "-{}",
    Op.ABS: "absolute({})",
    Op.EXP: "exponential({})",
    Op.LOG: "logarithm({})",
    Op.SQRT: "square_root({})",
    Op.TANH: "hyperbolic_tangent({})",
    Op.SIGMOID: "sigmoid({})",
    Op.LT: "truth<V>({} < {})",
    Op.LE: "truth<V>({} <= {})",
    Op.EQ: "truth<V>({} == {})",
    Op.WHERE: "select({} != 0, {}, {})",
}
assert set(CPP) == set(Op) - STRUCTURAL


def indent(lines: Iterable[str]) -> list[str]:
    return ["  " + line for line in lines]


def body(head: str, lines: Iterable[str]) -> list[str]:
    return [f"{head} {{", *indent(lines), "}"]


class Numbers:
    """Hands out the run-time numbers of one kernel (`dims[i]`) and the slots of its row cursor, in the order of first use."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.kinds = {b.name: b.kind for b in kernel.buffers}
        self.dims: list[int] = []
        self.slots: dict[tuple[str, bool], int] = {}

    def number(self, value: int) -> str:
        self.dims.append(value)
        return f"dims[{len(self.dims) - 1}]"

    def column(self, column: int) -> str:
        return f" + {self.number(column)}" if column else ""

    def slot(self, access: Access) -> int:
        return self.slots.setdefault((access.buffer, access.after), len(self.slots))

    def constant(self, value: float) -> str:
        """Small halves are part of a formula; any other constant may depend on a width (a mean's 1/H): a run-time number."""
        if math.isnan(value):
            return "NAN"
        if math.isinf(value):
            return "INFINITY" if value > 0 else "-INFINITY"
        if (2 * value).is_integer() and abs(value) <= 16:
            return repr(value)
        (bits,) = struct.unpack("q", struct.pack("d", value))
        return f"as_double({self.number(bits)})"


@dataclass
class Point:
    """The function's text, in the order in which it runs: `head`, and for each row `loop` and `bump`, then `tail`."""

    numbers: Numbers
    group: Group
    sources: tuple[tuple[Dot, ...], ...]
    sums: dict[str, int]  # COLUMN_SUM buffer -> its place in the thread's sums
    head: list[str] = field(default_factory=lambda: ["const auto& c = thread.cursor;"])
    loop: list[str] = field(default_factory=list)
    bump: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        names: dict[Expr, str] = {}
        for n, node in enumerate(self.group.nodes()):
            names[node] = f"v{n}"
            self.value(node, f"v{n}", [names[a] for a in node.args])
        folds = 0
        for n, store in enumerate(self.group.stores):
            if store.reduce is Reduce.ROWS:
                self.loop.append(f"fold{folds}[i] += mask.keep({names[store.value]});")
                folds += 1
            else:
                self.store(store, f"{n}", names[store.value])

    def value(self, node: Expr, name: str, args: list[str]) -> None:
        payload = node.payload
        if isinstance(payload, Access):
            self.load(payload, name)
        elif isinstance(payload, Dot):
            source, place = next((s, dots.index(payload)) for s, dots in enumerate(self.sources) if payload in dots)
            self.loop.append(f"const V {name} = load<V>(dot{source} + i * GEMM{source}::PITCH + {place} * units);")
        elif payload is not None:
            self.head.append(f"const V {name} = splat<V>({self.numbers.constant(payload)});")
        else:
            self.loop.append(f"const V {name} = {CPP[node.op].format(*args)};")

    def load(self, access: Access, name: str) -> None:
        slot, column = self.numbers.slot(access), self.numbers.column(access.column)
        read = "splat<V>(*{})" if access.broadcast else "mask.load({})"
        start = f"c.at[{slot}] + row * c.row[{slot}]{column}{'' if access.broadcast else ' + j'}"
        self.head.append(f"const real* from_{name} = {start};")
        if self.numbers.kinds[access.buffer] is Kind.VECTOR:
            self.head.append(f"const V {name} = {read.format('from_' + name)};")
            return
        if self.numbers.kinds[access.buffer] is Kind.STREAM:
            self.loop.append(f"__builtin_prefetch(from_{name} + c.step[{slot}], 0, 2);")
        self.loop.append(f"const V {name} = {read.format('from_' + name)};")
        self.bump.append(f"from_{name} += c.row[{slot}];")

    def store(self, store: Store, n: str, value: str) -> None:
        target = store.target
        column = self.numbers.column(target.column)
        if store.reduce is Reduce.COLUMNS:
            self.head.append(f"V sum{n}{{}};")
            self.loop.append(f"sum{n} += {value};")
            self.tail.append(f"real* to{n} = thread.sums[{self.sums[target.buffer]}].part{column} + j;")
            self.tail.append(f"mask.store(to{n}, mask.load(to{n}) + sum{n});")
            return
        slot = self.numbers.slot(target)
        self.head.append(f"real* to{n} = c.at[{slot}] + row * c.row[{slot}]{column} + j;")
        if self.numbers.kinds[target.buffer] in (Kind.STREAM, Kind.STATE):
            self.bump.append(f"__builtin_prefetch(to{n} + c.step[{slot}], 1, 2);")
        self.bump += [f"mask.store(to{n}, {value});", f"to{n} += c.row[{slot}];"]

    def parameters(self, declare: bool) -> str:
        dots = [f"dot{s}" for s in range(len(self.sources))]
        folds = [f"fold{n}" for n in range(sum(s.reduce is Reduce.ROWS for s in self.group.stores))]
        if declare:
            dots, folds = [f"const real* {d}" for d in dots], [f"V* {f}" for f in folds]
        return "".join(f", {p}" for p in (*dots, *folds))

    def lines(self, index: int) -> list[str]:
        """`dot<s>`: sums [rows, PITCH<s>] at the vector's column of the first dot; the next dot's lie `units` further."""
        head = (
            f"INLINE void point{index}(Thread& thread, const M mask, int64_t row, int64_t rows, int64_t j, int64_t units"
            f"{self.parameters(declare=True)}) const"
        )
        loop = body("for (int64_t i = 0; i < rows; ++i)", [*self.loop, *self.bump])
        gemms = "".join(f", class GEMM{s}" for s in range(len(self.sources)))
        return [f"template <class V{gemms}, class M>", *body(head, [*self.head, *loop, *self.tail])]
