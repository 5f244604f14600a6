"""Print one step of a Triton kernel: a group's expressions on register tiles, and what its stores leave for the next.

Nothing a step computes goes through memory to a later group. A product whose source stands in several tiles is a sum of
products, each with its rows of the weight.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

from bppsa.codegen.gpu.triton.columns import Columns, Piece, Tile, padded
from bppsa.codegen.gpu.triton.print_load import Loads, TritonVariable, span
from bppsa.codegen.gpu.triton.tiling import Tiles
from bppsa.codegen.language.expr import SPECIAL, STRUCTURAL, Access, Dot, Expr, Op
from bppsa.codegen.language.ir import Group, Kernel, Kind, Reduce, Store

TRITON: dict[Op, str] = {
    Op.ADD: "{} + {}",
    Op.SUB: "{} - {}",
    Op.MUL: "{} * {}",
    Op.DIV: "{} / {}",
    Op.MAX: "maximum({}, {})",
    Op.MIN: "minimum({}, {})",
    Op.NEG: "-{}",
    Op.ABS: "tl.abs({})",
    Op.EXP: "exponential({})",
    Op.LOG: "tl.log({})",
    Op.SQRT: "tl.sqrt({})",
    Op.TANH: "hyperbolic_tangent({})",
    Op.SIGMOID: "sigmoid({})",
    Op.ERF: "error_function({})",
    Op.SIN: "sine({}, 0)",
    Op.COS: "sine({}, 1)",
    Op.ATAN: "arc_tangent({})",
    Op.FLOOR: "tl.floor({})",
    Op.FMOD: "remainder_of({}, {})",
    Op.EXPONENT: "exponent({})",
    Op.LDEXP: "times_power_of_two({}, {})",
    Op.LT: "({} < {}).to(REAL)",
    Op.LE: "({} <= {}).to(REAL)",
    Op.EQ: "({} == {}).to(REAL)",
    Op.WHERE: "tl.where({} != 0, {}, {})",
}
assert set(TRITON) == set(Op) - STRUCTURAL - SPECIAL  # with which no cell comes here (`frontend.planning.sweeps`)

# The fold of a tile's columns, of two such, and what stands where a tile has no columns.
FOLDED = {
    Reduce.ROWS: ("tl.sum({}, 1, keep_dims=True)", "{} + {}", "0.0"),
    Reduce.MAX: ("largest({})", "maximum({}, {})", 'float("-inf")'),
}
VARIABLE = re.compile(r"\bv\d+\b")
# Where Triton sees one product feed another, it gives each warp some rows and all columns: good for attention's many
# rows, but all our warps would compute the same 16. It does not look into branches.
ALWAYS = "if rows > 0:"


class StepPrinter:
    """rows: for each buffer and side of the step, the columns that are in registers; the caller puts there what is
    carried from the step before."""

    def __init__(self, kernel: Kernel, loads: Loads) -> None:
        self.kernel, self.loads = kernel, loads
        self.kinds = kernel.kinds
        self.rows: dict[tuple[str, bool], Columns] = {}
        self.sums: dict[tuple[str, int, int], str] = {}  # (COLUMN_SUM, column, width) -> its accumulator
        self.lines: list[str] = []
        self._names = 0
        self._products: set[str] = set()  # what this step computes from a product
        self._clean: dict[tuple[str, int, int, str], str] = {}

    def emit(self, text: str, *, first: str | None = None) -> str:
        """Assign to a new variable; with `first`, that, and then `text` in a branch of its own."""
        self._names += 1
        name = f"v{self._names}"
        if "tl.dot" in text or not self._products.isdisjoint(VARIABLE.findall(text)):
            self._products.add(name)
        self.lines += [f"{name} = {text}"] if first is None else [f"{name} = {first}", ALWAYS, f"    {name} = {text}"]
        return name

    def group(self, group: Group, spans: Tiles) -> None:
        """`spans`: the tiles of its columns."""
        values = [self.block(group, start, width) for start, width in spans]  # stores come after all loads
        commit: dict[Reduce, Callable[[Store, Sequence[tuple[int, Tile]]], None]] = {
            Reduce.NONE: self.store,
            Reduce.ROWS: self.fold_row,
            Reduce.MAX: self.fold_row,
            Reduce.COLUMNS: self.sum_columns,
        }
        for store in group.stores:
            tiles = [
                (start, self.tile(found[store.value], width))
                for (start, width), found in zip(spans, values, strict=True)
            ]
            commit[store.reduce](store, tiles)

    def block(self, group: Group, start: int, width: int) -> dict[Expr, TritonVariable]:
        """Every expression of the group, for its columns [start, start + width)."""
        values: dict[Expr, TritonVariable] = {}
        for node in group.nodes():
            payload = node.payload
            if isinstance(payload, Access):
                at = payload.column + (0 if payload.broadcast else start)
                values[node] = self.load(payload, at, 1 if payload.broadcast else width)
            elif isinstance(payload, Dot):
                values[node] = self.dot(payload, payload.column + start, width)
            elif payload is not None:
                values[node] = self.loads.constant(payload)
            else:
                args = [values[a] for a in node.args]
                shape = max(a.shape[0] for a in args), max(a.shape[1] for a in args)
                values[node] = TritonVariable(self.emit(TRITON[node.op].format(*(a.name for a in args))), shape)
        return values

    def columns(self, access: Access, *, written: bool = False) -> Columns:
        """A RUNNING load sees what the previous step left, so its row too has a side before and one after the step."""
        after = written if self.kinds[access.buffer] is Kind.RUNNING else access.after
        return self.rows.setdefault((access.buffer, after), Columns())

    def pieces(self, access: Access, start: int, width: int) -> list[Piece]:
        def missing(column: int, width: int) -> Tile:
            assert self.kinds[access.buffer] in (Kind.STREAM, Kind.STATE), f"{access} is read before it is stored"
            return self.loads.fetch(access.buffer, access.after, column, width)

        return list(self.columns(access).cover(start, start + width, missing))

    def load(self, access: Access, start: int, width: int) -> TritonVariable:
        if self.kinds[access.buffer] is Kind.VECTOR:
            return self.loads.vector(access.buffer, start, width)
        return self.joined(self.pieces(access, start, width))

    def joined(self, pieces: Sequence[Piece]) -> TritonVariable:
        """One tile of adjacent pieces."""
        if len(pieces) == 1 and pieces[0].whole:
            return of_tile(pieces[0].tile)
        start = pieces[0].start
        width = pieces[-1].stop - start
        name = self.loads.zeros(width)
        for p in pieces:
            low, high = p.start - start, p.stop - start
            tile = self.of_all_rows(of_tile(p.tile))
            name = self.emit(f"moved({name}, {tile}, {low}, {high}, {p.offset - low})")
        return TritonVariable(name, (self.loads.block.rows, padded(width)))

    def dot(self, term: Dot, column: int, width: int) -> TritonVariable:
        depth = self.kernel.buffer(term.weight).depth
        total = ""
        for piece in self.pieces(term.source, term.source.column, depth):
            weight, text = self.loads.weight(
                term.weight, piece.start - term.source.column - piece.offset, piece, column, width
            )
            weight = weight or self.emit(text)
            clean = self.clean(piece.tile, *piece.columns)
            rows = self.of_all_rows(TritonVariable(clean, of_tile(piece.tile).shape))
            text = product(rows, padded(piece.tile.width), weight, padded(width), total)
            chained = rows in self._products and "tl.dot" in text
            total = self.emit(text, first=(total or self.loads.zeros(width)) if chained else None)
        return TritonVariable(total, (self.loads.block.rows, padded(width)))

    def clean(self, tile: Tile, low: int, high: int, fill: str = "0.0") -> str:
        """The tile with zeros outside columns [low, high), where what is no number would spoil a sum."""
        size = padded(tile.width)
        conditions = span(self.loads.columns(size), low, high, size)
        if not conditions:
            return tile.name
        key = (tile.name, low, high, fill)
        if key not in self._clean:
            self._clean[key] = self.emit(f"tl.where({' & '.join(conditions)}, {tile.name}, {fill})")
        return self._clean[key]

    def tile(self, value: TritonVariable, width: int) -> Tile:
        """Broadcast to one row a sample, or what has more stays as it is."""
        rows = max(value.shape[0], self.loads.block.samples)
        return Tile(self.full(value, (rows, padded(width))), width, rows)

    def of_all_rows(self, value: TritonVariable) -> str:
        return self.full(value, (self.loads.block.rows, value.shape[1]))

    def full(self, value: TritonVariable, shape: tuple[int, int]) -> str:
        return value.name if value.shape == shape else self.emit(f"tl.broadcast_to({value.name}, {list(shape)})")

    def store(self, store: Store, tiles: Sequence[tuple[int, Tile]]) -> None:
        for start, tile in tiles:
            self.columns(store.target, written=True).write(store.target.column + start, tile)

    def fold_row(self, store: Store, tiles: Sequence[tuple[int, Tile]]) -> None:
        of_tile, of_two, neutral = FOLDED[store.reduce]
        parts = [of_tile.format(self.clean(tile, 0, tile.width, neutral)) for _, tile in tiles]
        text = functools.reduce(of_two.format, parts)
        total = Tile(self.emit(text), 1, max(tile.rows for _, tile in tiles))
        self.columns(store.target, written=True).write(store.target.column, total)

    def sum_columns(self, store: Store, tiles: Sequence[tuple[int, Tile]]) -> None:
        for start, tile in tiles:
            width = tile.width
            key = (store.target.buffer, store.target.column + start, width)
            others = [k for k in self.sums if k != key and k[0] == key[0]]
            clash = [k for k in others if k[1] < key[1] + width and key[1] < k[1] + k[2]]
            assert not clash, f"{store} sums into some columns of {clash}"
            name = self.sums.setdefault(key, f"s{len(self.sums)}")
            self.lines.append(f"{name} += tl.where(live, {tile.name}, 0.0)")


def of_tile(tile: Tile) -> TritonVariable:
    return TritonVariable(tile.name, (tile.rows, padded(tile.width)))


def product(rows: str, depth: int, weight: str, width: int, total: str) -> str:
    """`total` + rows [rows, depth] times weight, by tensor cores unless one side is a single column."""
    if depth > 1 and width > 1:
        return f"tl.dot({rows}, {weight}, {total or None}, input_precision=PRECISION, out_dtype=REAL)"
    single = f"{rows} * {weight}" if depth == 1 else f"tl.sum({rows} * {weight}, 1, keep_dims=True)"
    return f"{total} + {single}" if total else single
