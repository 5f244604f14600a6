"""Print a group's expressions: a C++ function that evaluates them on one vector of columns, for some rows, and stores."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bppsa.codegen.ir import STRUCTURAL, Access, Dot, Expr, Group, Kernel, Kind, Op, Reduce, Store
from bppsa.codegen.levels import levels

CPP: dict[Op, str] = {
    Op.ADD: "{} + {}",
    Op.SUB: "{} - {}",
    Op.MUL: "{} * {}",
    Op.DIV: "{} / {}",
    Op.MAX: "maximum({}, {})",
    Op.MIN: "minimum({}, {})",
    Op.NEG: "-{}",
    Op.ABS: "absolute({})",
    Op.EXP: "exponential<1>({})",
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
class Loop:
    """One pass over the rows: each slot has one moving pointer; stores come after all loads."""

    lines: list[str] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)
    slots: dict[int, None] = field(default_factory=dict)

    def text(self) -> list[str]:
        pointers = [f"real* row{slot} = base{slot};" for slot in self.slots]
        bumps = [f"row{slot} += stride{slot};" for slot in self.slots]
        return body("", [*pointers, *body("for (int64_t i = 0; i < rows; ++i)", [*self.lines, *self.stores, *bumps])])


class Point:
    """The function for one group: `head`, one or more loops over the rows, `tail`."""

    def __init__(self, numbers: Numbers, group: Group, sources: Sequence[tuple[Dot, ...]], sums: Sequence[str]) -> None:
        self.numbers, self.group, self.sources, self.sums = numbers, group, sources, sums
        self.head, self.tail = ["const auto& c = thread.cursor;"], []
        self.bases: set[int] = set()
        nodes, roots = group.nodes(), [store.value for store in group.stores]
        self.level = levels(nodes, roots)
        self.loops = [Loop() for _ in range(1 + max(self.level.values(), default=0))]
        self.name = {node: f"v{n}" for n, node in enumerate(nodes)}
        self.wanted: dict[Expr, set[int]] = {node: set() for node in nodes}
        for root in roots:
            self.wanted[root].add(len(self.loops) - 1)
        for node in nodes:
            for arg in node.args:
                self.wanted[arg].add(self.level[node])
        self.loaded = {node.payload for node in nodes if node.op is Op.LOAD}
        for node in nodes:
            self.VALUE.get(node.op, Point.compute)(self, node)
        self.folds = 0
        for n, store in enumerate(group.stores):
            self.STORE[store.reduce](self, store, f"store{n}")

    def compute(self, node: Expr) -> None:
        name, own = self.name[node], self.level[node]
        self.loops[own].lines.append(f"const V {name} = {CPP[node.op].format(*(self.name[a] for a in node.args))};")
        if later := self.wanted[node] - {own}:
            self.head.append(f"V kept_{name}[CHUNK];")
            self.loops[own].lines.append(f"kept_{name}[i] = {name};")
            for level in later:
                self.loops[level].lines.append(f"const V {name} = kept_{name}[i];")

    def constant(self, node: Expr) -> None:
        self.head.append(f"const V {self.name[node]} = splat<V>({self.numbers.constant(node.payload)});")

    def dot(self, node: Expr) -> None:
        s, place = next((s, dots.index(node.payload)) for s, dots in enumerate(self.sources) if node.payload in dots)
        for level in self.wanted[node]:
            self.loops[level].lines.append(
                f"const V {self.name[node]} = load<V>(dot{s} + i * GEMM{s}::PITCH + {place} * units);"
            )

    def load(self, node: Expr) -> None:
        access, name = node.payload, self.name[node]
        slot, kind = self.numbers.slot(access), self.numbers.kinds[access.buffer]
        at = self.offset(access, name)
        read = "splat<V>(*({}))" if access.broadcast else "mask.load({})"
        if kind is Kind.VECTOR:
            self.head.append(f"const V {name} = {read.format(f'base{slot} + {at}')};")
            return
        if kind is Kind.STREAM and not access.broadcast:
            self.loops[min(self.wanted[node])].lines.append(f"__builtin_prefetch(row{slot} + {at} + step{slot}, 0, 2);")
        for level in self.wanted[node]:
            self.loops[level].slots[slot] = None
            self.loops[level].lines.append(f"const V {name} = {read.format(f'row{slot} + {at}')};")

    def offset(self, access: Access, name: str) -> str:
        """Where the access is in a row of its slot."""
        slot = self.numbers.slot(access)
        if slot not in self.bases:
            self.bases.add(slot)
            self.head.append(f"real* const base{slot} = c.at[{slot}] + row * c.row[{slot}];")
            self.head.append(f"const int64_t stride{slot} = c.row[{slot}], step{slot} = c.step[{slot}];")
        offset = ("" if access.broadcast else "j") + self.numbers.column(access.column)
        self.head.append(f"const int64_t {name}_at = {offset or '0'};")
        return f"{name}_at"

    def store(self, store: Store, name: str) -> None:
        target, loop = store.target, self.loops[-1]
        slot, at = self.numbers.slot(target), self.offset(target, name)
        loop.slots[slot] = None
        if self.numbers.kinds[target.buffer] in (Kind.STREAM, Kind.STATE) and target not in self.loaded:
            loop.stores.append(f"__builtin_prefetch(row{slot} + {at} + step{slot}, 1, 2);")
        loop.stores.append(f"mask.store(row{slot} + {at}, {self.name[store.value]});")

    def sum_columns(self, store: Store, name: str) -> None:
        self.head.append(f"V {name}{{}};")
        self.loops[-1].lines.append(f"{name} += {self.name[store.value]};")
        column = self.numbers.column(store.target.column)
        self.tail.append(f"real* {name}_at = thread.sums[{self.sums.index(store.target.buffer)}].part + j{column};")
        self.tail.append(f"mask.store({name}_at, mask.load({name}_at) + {name});")

    def sum_row(self, store: Store, name: str) -> None:
        self.loops[-1].lines.append(f"fold{self.folds}[i] += mask.keep({self.name[store.value]});")
        self.folds += 1

    VALUE = {Op.LOAD: load, Op.CONST: constant, Op.DOT: dot}
    STORE = {Reduce.NONE: store, Reduce.COLUMNS: sum_columns, Reduce.ROWS: sum_row}

    def lines(self, index: int) -> list[str]:
        """`dot<s>`: sums [rows, PITCH<s>] at the vector's column of the first dot; the next dot's lie `units` further."""
        dots = range(len(self.sources))
        gemms = "".join(f", class GEMM{s}" for s in dots)
        arguments = "".join([*(f", const real* dot{s}" for s in dots), *(f", V* fold{n}" for n in range(self.folds))])
        head = (
            f"INLINE void point{index}(Thread& thread, const M mask, int64_t row, int64_t rows, int64_t j, int64_t units{arguments})"
            " const"
        )
        loops = [line for loop in self.loops for line in loop.text()]
        return [f"template <class V{gemms}, class M>", *body(head, [*self.head, *loops, *self.tail])]
