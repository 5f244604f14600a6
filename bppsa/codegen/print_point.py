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
class Point:
    """The function's text, in the order in which it runs: `head`, for each row `loop`, `stores`, `bump`, then `tail`."""

    numbers: Numbers
    group: Group
    sources: tuple[tuple[Dot, ...], ...]
    sums: dict[str, int]  # COLUMN_SUM buffer -> its place in the thread's sums
    head: list[str] = field(default_factory=lambda: ["const auto& c = thread.cursor;"])
    loop: list[str] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)
    bump: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    slots: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.loaded = {node.payload for node in self.group.nodes() if node.op is Op.LOAD}
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
                self.store(store, f"store{n}", names[store.value])

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

    def row(self, access: Access, name: str) -> str:
        """The address of this access in the current row; every slot has one moving pointer."""
        slot = self.numbers.slot(access)
        if slot not in self.slots:
            self.slots.add(slot)
            self.head.append(f"real* row{slot} = c.at[{slot}] + row * c.row[{slot}];")
            self.head.append(f"const int64_t stride{slot} = c.row[{slot}], step{slot} = c.step[{slot}];")
            self.bump.append(f"row{slot} += stride{slot};")
        offset = ("" if access.broadcast else "j") + self.numbers.column(access.column)
        self.head.append(f"const int64_t {name}_at = {offset or '0'};")
        return f"row{slot} + {name}_at"

    def load(self, access: Access, name: str) -> None:
        address = self.row(access, name)
        kind = self.numbers.kinds[access.buffer]
        value = f"const V {name} = {f'splat<V>(*({address}))' if access.broadcast else f'mask.load({address})'};"
        if kind is Kind.VECTOR:
            self.head.append(value)
            return
        if kind is Kind.STREAM and not access.broadcast:
            self.loop.append(f"__builtin_prefetch({address} + step{self.numbers.slot(access)}, 0, 2);")
        self.loop.append(value)

    def store(self, store: Store, name: str, value: str) -> None:
        target = store.target
        if store.reduce is Reduce.COLUMNS:
            self.head.append(f"V {name}{{}};")
            self.loop.append(f"{name} += {value};")
            column = self.numbers.column(target.column)
            self.tail.append(f"real* {name}_at = thread.sums[{self.sums[target.buffer]}].part + j{column};")
            self.tail.append(f"mask.store({name}_at, mask.load({name}_at) + {name});")
            return
        address = self.row(target, name)
        if self.numbers.kinds[target.buffer] in (Kind.STREAM, Kind.STATE) and target not in self.loaded:
            self.stores.append(f"__builtin_prefetch({address} + step{self.numbers.slot(target)}, 1, 2);")
        self.stores.append(f"mask.store({address}, {value});")

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
        loop = body("for (int64_t i = 0; i < rows; ++i)", [*self.loop, *self.stores, *self.bump])
        gemms = "".join(f", class GEMM{s}" for s in range(len(self.sources)))
        return [f"template <class V{gemms}, class M>", *body(head, [*self.head, *loop, *self.tail])]
