"""Print a group's expressions: a C++ function that evaluates them on one vector of columns, for some rows.

    template <...> void point3(Thread& thread, const M mask, row, rows, j, units, const real* dot0, ...) const

`mask` is Full or Tail (skeleton/vec.h). dot<s>: the dot products of source s, [rows, GEMM<s>::PITCH], at the vector's
column of the first of them; the next one's lie `units` further. fold<n>: a vector for each row, of sums over columns.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bppsa.codegen.arrange.levels import levels
from bppsa.codegen.language.exact import addend, compares, operands
from bppsa.codegen.language.expr import STRUCTURAL, Access, Dot, Expr, Op
from bppsa.codegen.language.ir import Group, Kernel, Kind, Reduce, Store

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
    Op.ERF: "error_function({})",
    Op.SIN: "sine<0>({})",
    Op.COS: "sine<1>({})",
    Op.ATAN: "arc_tangent({})",
    Op.FLOOR: "floor_of({})",
    Op.FMOD: "remainder_of({}, {})",
    Op.EXPONENT: "exponent({})",
    Op.LDEXP: "times_power_of_two({}, {})",
    Op.ERFC: "each_lane(tail_of_the_normal, {})",
    Op.ERFCX: "each_lane(scaled_tail_of_the_normal, {})",
    Op.ERFINV: "each_lane(inverse_error_function, {})",
    Op.NDTRI: "each_lane(quantile_of_the_normal, {})",
    Op.LGAMMA: "each_lane(log_gamma, {})",
    Op.DIGAMMA: "each_lane(digamma, {})",
    Op.ZETA: "each_lane(hurwitz_zeta, {}, {})",
    Op.I0E: "each_lane(scaled_bessel<0>, {})",
    Op.I1E: "each_lane(scaled_bessel<1>, {})",
    Op.LT: "truth<V>({} < {})",
    Op.LE: "truth<V>({} <= {})",
    Op.EQ: "truth<V>({} == {})",
    Op.WHERE: "select({} != 0, {}, {})",
}
assert set(CPP) == set(Op) - STRUCTURAL

MOST_LITERAL = 16


def body(head: str, lines: Iterable[str]) -> list[str]:
    return [f"{head} {{", *("  " + line for line in lines), "}"]


class RuntimeNumbers:
    """Hands out the run-time numbers of a kernel, `dims[i]`, and the slots of its row cursor, by order of first use."""

    def __init__(self, kernel: Kernel) -> None:
        self.kinds = kernel.kinds
        self.exact = compares(kernel.groups)
        self.dims: list[int] = []
        self.slots: dict[tuple[str, bool], int] = {}

    def number(self, value: int) -> str:
        self.dims.append(value)
        return f"dims[{len(self.dims) - 1}]"

    def plus(self, column: int) -> str:
        return f" + {self.number(column)}" if column else ""

    def slot(self, access: Access) -> int:
        return self.slots.setdefault((access.buffer, access.after), len(self.slots))

    def constant(self, value: float) -> str:
        """Small halves belong to a formula; others may depend on a width, as a mean's 1/H does: run-time numbers."""
        if math.isnan(value):
            return '__builtin_nan("")'
        if math.isinf(value):
            return "__builtin_inf()" if value > 0 else "-__builtin_inf()"
        if (2 * value).is_integer() and abs(value) <= MOST_LITERAL:
            return repr(value)
        (bits,) = struct.unpack("q", struct.pack("d", value))
        return f"as_double({self.number(bits)})"


@dataclass
class RowLoop:
    """One pass over the rows: a moving pointer for each slot; what writes comes after all that reads."""

    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    slots: dict[int, None] = field(default_factory=dict)

    def lines(self) -> list[str]:
        pointers = [f"real* row{slot} = base{slot};" for slot in self.slots]
        bumps = [f"row{slot} += stride{slot};" for slot in self.slots]
        return body("", [*pointers, *body("for (int64_t i = 0; i < rows; ++i)", [*self.reads, *self.writes, *bumps])])


class Point:
    """The function's text: `head`, one or more loops over the rows, `tail`."""

    def __init__(
        self, numbers: RuntimeNumbers, group: Group, sources: Sequence[tuple[Dot, ...]], sums: Sequence[str]
    ) -> None:
        self.numbers, self.sources, self.sums = numbers, sources, sums
        self.head, self.tail = ["const auto& c = thread.cursor;"], list[str]()
        self.bases: set[int] = set()
        self.folds = 0
        nodes = group.nodes()
        self.name = {node: f"v{n}" for n, node in enumerate(nodes)}
        self.level = levels(nodes)
        self.loops = [RowLoop() for _ in range(1 + max(self.level.values(), default=0))]
        self.wanted = self.wanted_in(group)
        self.loaded = {node.payload for node in nodes}
        for node in nodes:
            self.value(node)
        store: dict[Reduce, Callable[[Store, str], None]] = {
            Reduce.NONE: self.store,
            Reduce.COLUMNS: self.sum_columns,
            Reduce.ROWS: self.sum_row,
            Reduce.MAX: self.max_row,
        }
        for n, s in enumerate(group.stores):
            store[s.reduce](s, f"store{n}")

    def wanted_in(self, group: Group) -> dict[Expr, list[int]]:
        """The loops in which each node is an operand."""
        wanted: dict[Expr, set[int]] = {node: set() for node in group.nodes()}
        for store in group.stores:
            wanted[store.value].add(len(self.loops) - 1)
        for node in group.nodes():
            for arg in node.args:
                wanted[arg].add(self.level[node])
        return {node: sorted(loops) for node, loops in wanted.items()}

    def value(self, node: Expr) -> None:
        name, payload = self.name[node], node.payload
        if isinstance(payload, Access):
            self.load(payload, name, self.wanted[node])
        elif isinstance(payload, Dot):
            s, place = next((s, dots.index(payload)) for s, dots in enumerate(self.sources) if payload in dots)
            for level in self.wanted[node]:
                at = f"dot{s} + i * GEMM{s}::PITCH + {place} * units"
                self.loops[level].reads.append(f"const V {name} = load<V>({at});")
        elif payload is not None:
            self.head.append(f"const V {name} = splat<V>({self.numbers.constant(payload)});")
        else:
            self.compute(node, name)

    def compute(self, node: Expr, name: str) -> None:
        own = self.loops[self.level[node]]
        own.reads.append(f"const V {name} = {CPP[node.op].format(*operands(node, self.name, self.numbers.exact))};")
        later = [level for level in self.wanted[node] if level != self.level[node]]
        if later:
            self.head.append(f"V kept_{name}[CHUNK];")
            own.reads.append(f"kept_{name}[i] = {name};")
        for level in later:
            self.loops[level].reads.append(f"const V {name} = kept_{name}[i];")

    def load(self, access: Access, name: str, wanted: Sequence[int]) -> None:
        slot, at = self.column_of(access, name)
        kind = self.numbers.kinds[access.buffer]
        read = "splat<V>(*({}))" if access.broadcast else "mask.load({})"
        if kind is Kind.VECTOR:
            self.head.append(f"const V {name} = {read.format(f'base{slot} + {at}')};")
            return
        for level in wanted:
            self.loops[level].slots[slot] = None
            self.loops[level].reads.append(f"const V {name} = {read.format(f'row{slot} + {at}')};")
        if kind is Kind.STREAM and not access.broadcast:
            self.loops[wanted[0]].reads.append(f"__builtin_prefetch(row{slot} + {at} + step{slot}, 0, 2);")

    def store(self, store: Store, name: str) -> None:
        loop = self.loops[-1]
        slot, at = self.column_of(store.target, name)
        loop.slots[slot] = None
        if self.numbers.kinds[store.target.buffer] in (Kind.STREAM, Kind.STATE) and store.target not in self.loaded:
            loop.writes.append(f"__builtin_prefetch(row{slot} + {at} + step{slot}, 1, 2);")
        loop.writes.append(f"mask.store(row{slot} + {at}, {self.name[store.value]});")

    def column_of(self, access: Access, name: str) -> tuple[int, str]:
        """(slot, where in its rows)."""
        slot = self.numbers.slot(access)
        if slot not in self.bases:
            self.bases.add(slot)
            self.head.append(f"real* const base{slot} = c.at[{slot}] + row * c.row[{slot}];")
            self.head.append(f"[[maybe_unused]] const int64_t stride{slot} = c.row[{slot}];")
            self.head.append(f"[[maybe_unused]] const int64_t step{slot} = c.step[{slot}];")
        column = self.numbers.plus(access.column)
        self.head.append(f"const int64_t {name}_at = {'0' if access.broadcast else 'j'}{column};")
        return slot, f"{name}_at"

    def sum_columns(self, store: Store, name: str) -> None:
        self.head.append(f"V {name}{{}};")
        self.loops[-1].writes.append(f"{name} += {self.name[store.value]};")
        part = f"thread.sums[{self.sums.index(store.target.buffer)}].part"
        self.tail.append(f"real* {name}_at = {part} + j{self.numbers.plus(store.target.column)};")
        self.tail.append(f"mask.store({name}_at, mask.load({name}_at) + {name});")

    def sum_row(self, store: Store, name: str) -> None:
        value = addend(store.value, self.name[store.value], self.numbers.exact)
        self.loops[-1].writes.append(f"fold{self.folds}[i] += mask.keep({value});")
        self.folds += 1

    def max_row(self, store: Store, name: str) -> None:
        value = f"mask.keep({self.name[store.value]}, splat<V>(-__builtin_inf()))"
        self.loops[-1].writes.append(f"fold{self.folds}[i] = maximum(fold{self.folds}[i], {value});")
        self.folds += 1

    def lines(self, index: int) -> list[str]:
        dots = range(len(self.sources))
        gemms = "".join(f", class GEMM{s}" for s in dots)
        arguments = [
            "Thread& thread, const M mask, int64_t row, int64_t rows, int64_t j, [[maybe_unused]] int64_t units",
            *(f"const real* dot{s}" for s in dots),
            *(f"V* fold{n}" for n in range(self.folds)),
        ]
        loops = [line for loop in self.loops for line in loop.lines()]
        return [
            f"template <class V{gemms}, class M>",
            *body(f"INLINE void point{index}({', '.join(arguments)}) const", [*self.head, *loops, *self.tail]),
        ]
