"""Print one step of a CUDA kernel: each thread evaluates a group's expressions for the columns that it owns.

A value that a later group, or the next step, loads column for column stays in the thread that made it. What other
threads read goes through the image in shared memory (`image`), and what no step writes is fetched ahead (`Fetch`).
"""

from __future__ import annotations

from dataclasses import replace

from bppsa.codegen.gpu.cuda import image
from bppsa.codegen.gpu.cuda.held import Fetch, Held, PieceNames, latest, overlap, stored_columns
from bppsa.codegen.gpu.cuda.image import CARRIED, ImageSlot, Waiting
from bppsa.codegen.gpu.cuda.lanes import HeldWeight, Lanes, weight_of
from bppsa.codegen.gpu.cuda.text import ACROSS, CUDA, literal, row_at
from bppsa.codegen.language.exact import compares
from bppsa.codegen.language.expr import Access, Dot, Expr, Op
from bppsa.codegen.language.ir import FOLDS, Buffer, Group, Kernel, Kind, Reduce, Store
from bppsa.errors import Unsupported


class ThreadPrinter:
    """Prints all of a step at once. What it finds out: `lines`; `fetches` and `weights` in the order of their
    variables; `sums`, by name and columns; `exits`, what is carried to the next step; `waiting`, as it is left.

    imaged: the rows of which other threads read something. It is found by printing: what `wanted` has besides has to be
    in it, so the caller prints once more. entries: what is carried into the step; waiting: since when, likewise."""

    def __init__(
        self,
        kernel: Kernel,
        lanes: Lanes,
        imaged: dict[str, int],
        entries: dict[tuple[str, bool], list[Held]],
        waiting: Waiting,
    ) -> None:
        self.kernel, self.lanes, self.imaged, self.waiting = kernel, lanes, imaged, waiting
        self.layout = image.layout(imaged.items())
        self.buffers = {b.name: b for b in kernel.buffers}
        self.rows = {side: list(held) for side, held in entries.items()}
        self.stored = stored_columns(kernel)
        self.exact = compares(kernel.groups)
        self.lines: list[str] = []
        self.wanted: dict[str, int] = {}
        self.fetches: dict[Fetch, int] = {}
        self.vectors: dict[tuple[str, int, int], str] = {}
        self.weights: dict[HeldWeight, str] = {}
        self.sums: dict[tuple[str, int, int], PieceNames] = {}
        self.is_met = False
        self.count = 0
        for group in kernel.groups:
            self.group(group)

    # ---- names

    def new(self, value: str) -> str:
        self.count += 1
        self.lines.append(f"const real v{self.count} = {value};")
        return f"v{self.count}"

    def leaves(self, buffer: Buffer, after: bool) -> bool:
        """Whether the next step starts from this side of the step. What a step stores into a RUNNING it leaves."""
        return after == self.kernel.along if buffer.kind is Kind.STATE else after

    def side(self, access: Access, *, stores: bool) -> tuple[str, bool]:
        """A RUNNING's loads are of what was before the step."""
        buffer = self.buffers[access.buffer]
        return access.buffer, stores if buffer.kind is Kind.RUNNING else access.after

    def slot(self, side: tuple[str, bool]) -> ImageSlot:
        buffer = self.buffers[side[0]]
        return buffer.name, image.when(buffer, leaves=self.leaves(buffer, side[1]))

    # ---- the image

    def meet(self) -> None:
        self.lines.append("MEET;")
        self.waiting.met()
        self.is_met = True

    def read(self, slot: ImageSlot) -> None:
        if self.waiting.before_reading(slot):
            self.meet()
        self.waiting.read.add(slot)

    def write(self, slot: ImageSlot, low: int, high: int) -> None:
        if self.waiting.before_writing(slot, low, high):
            self.meet()
        self.waiting.written.setdefault(slot, set()).add((low, high))

    def want(self, buffer: Buffer) -> bool:
        """Whether the row is in the image already."""
        if buffer.name not in self.imaged:
            self.wanted[buffer.name] = buffer.width
        return buffer.name in self.imaged

    # ---- a group

    def group(self, group: Group) -> None:
        values: dict[Expr, PieceNames] = {}
        for node in group.nodes():
            if isinstance(node.payload, Access):
                values[node] = self.load(node.payload, group.width)
            elif isinstance(node.payload, Dot):
                values[node] = self.dot(node.payload, group.width)
            elif node.payload is not None:
                values[node] = (literal(node.payload),)
            else:
                text = "product({}, {})" if self.exact and node.op is Op.MUL else CUDA[node.op]
                values[node] = self.evaluate(text, [values[arg] for arg in node.args])
        folds = [self.fold(store, values[store.value], group.width) for store in group.stores]
        for store, names in zip(group.stores, folds, strict=True):
            if store.reduce is Reduce.COLUMNS:
                self.add_up(store.target, names, group.width)
            else:
                self.commit(store.target, names, 1 if store.reduce in FOLDS else group.width)

    def evaluate(self, text: str, args: list[PieceNames]) -> PieceNames:
        pieces = max(map(len, args))
        return tuple(self.new(text.format(*(a[min(i, len(a) - 1)] for a in args))) for i in range(pieces))

    def load(self, access: Access, width: int) -> PieceNames:
        """Reads columns that no group stored from memory, and columns that one stored alike from its variables."""
        buffer = self.buffers[access.buffer]
        width = 1 if access.broadcast else width
        if buffer.kind is Kind.VECTOR:
            return self.vector(buffer.name, access.column, width)
        side = self.side(access, stores=False)
        met = [h for h in self.rows.get(side, ()) if overlap(h, access.column, width)]
        if met and (met[-1].column, met[-1].width) == (access.column, width):
            return met[-1].names
        if self.made(side, access.column, width):
            return self.load_shared(side, access.column, width)
        return self.fetch(Fetch(buffer, side[1], access.column, width))

    def made(self, side: tuple[str, bool], column: int, width: int) -> bool:
        """Whether this step or the one before made these columns; else they are in memory. Refuses some of both."""
        buffer = self.buffers[side[0]]
        if buffer.kind is Kind.SCRATCH:
            return True
        found = {c for h in self.rows.get(side, ()) for c in range(h.column, h.column + h.width)}
        if buffer.kind in CARRIED and not self.leaves(buffer, side[1]):
            found |= {c for low, high in self.stored.get(buffer.name, ()) for c in range(low, high)}
        asked = set(range(column, column + width))
        if asked & found and asked - found:
            raise Unsupported("columns of memory and of the step together", f"load of {buffer.name}")
        return bool(asked & found)

    def load_shared(self, side: tuple[str, bool], column: int, width: int) -> PieceNames:
        if not self.want(self.buffers[side[0]]):
            return ("real(0)",) * self.lanes.pieces(width)
        slot = self.slot(side)
        self.read(slot)
        at = self.layout.at(slot, column)
        return tuple(self.new(f"load_shared(image, {at} + {self.own(width, i)})") for i in self.pieces(width))

    def pieces(self, width: int) -> range:
        return range(self.lanes.pieces(width))

    def own(self, width: int, piece: int) -> str:
        """The column of a group that a thread owns."""
        return "0" if width == 1 else f"own{width}_{piece}"

    def is_owner(self, width: int, piece: int) -> str:
        """Whether no other thread owns the same column, as C++; "" where none can."""
        one = [] if self.lanes.parts == 1 else ["part == 0"]
        full = [] if self.lanes.is_full(width, piece) else [f"unit + {piece * self.lanes.units} < {width}"]
        return " && ".join(one + full)

    def fetch(self, fetch: Fetch) -> PieceNames:
        first = self.fetches.setdefault(fetch, sum(self.lanes.pieces(f.width) for f in self.fetches))
        return tuple(f"now[{first + i}]" for i in self.pieces(fetch.width))

    def vector(self, name: str, column: int, width: int) -> PieceNames:
        known = self.vectors.setdefault((name, column, width), f"vector{len(self.vectors)}")
        return tuple(f"{known}_{i}" for i in self.pieces(width))

    def dot(self, dot: Dot, width: int) -> PieceNames:
        """The source is read from the image; what comes from memory is put there first."""
        weight = weight_of(self.kernel, dot, width)
        held = self.weights.setdefault(weight, f"weight{len(self.weights)}")
        source, depth = dot.source, weight.depth
        buffer = self.buffers[source.buffer]
        if not self.want(buffer):
            return ("real(0)",) * self.lanes.pieces(width)
        side = self.side(source, stores=False)
        slot = self.slot(side)
        if not self.made(side, source.column, depth):
            fetched = self.load(replace(source, broadcast=False), depth)
            self.put(slot, source.column, fetched, depth)
            self.rows.setdefault(side, []).append(Held(source.column, depth, fetched))
        self.read(slot)
        at, number = self.layout.at(slot, source.column), weight.held(self.lanes)
        aligned = (self.layout.offsets[buffer.name] + source.column) % 4 == 0 and self.layout.size % 4 == 0
        found = []
        for i in self.pieces(width):
            if weight.in_quads(self.lanes):
                how = "quads" if aligned else "unaligned"
                text = f"dot_of_{how}<{number}, PARTS>({held}_{i}, image, {at}, part)"
            else:
                text = f"dot_of_singles<{number}, PARTS>({held}_{i}, image, {at}, part, {depth})"
            found.append(self.new(f"sum_across<1, PARTS>({text})"))
        return tuple(found)

    def put(self, slot: ImageSlot, column: int, names: PieceNames, width: int) -> None:
        self.write(slot, column, column + width)
        at = self.layout.at(slot, column)
        for i, name in enumerate(names):
            self.guarded(width, i, f"store_shared(image, {at} + {self.own(width, i)}, {name});")

    def guarded(self, width: int, piece: int, line: str) -> None:
        owner = self.is_owner(width, piece)
        self.lines.append(f"if ({owner}) {line}" if owner else line)

    # ---- stores

    def fold(self, store: Store, names: PieceNames, width: int) -> PieceNames:
        """A fold over columns ends in all threads."""
        if store.reduce not in FOLDS:
            return names
        across, nothing, both = ACROSS[store.reduce]
        own = []
        for i in self.pieces(width):
            owner, name = self.is_owner(width, i), names[min(i, len(names) - 1)]
            own.append(f"({owner} ? {name} : {nothing})" if owner else name)
        text = own[0]
        for other in own[1:]:
            text = both.format(text, other)
        value = self.new(f"{across}<1, 32>({text})")
        return (value,) if self.lanes.warps == 1 else (self.across_warps(value, both, store.target),)

    def across_warps(self, value: str, both: str, target: Access) -> str:
        name, warps = f"{target.buffer}, a number a warp", self.lanes.warps
        if name not in self.imaged:
            self.wanted[name] = warps
            return value
        slot = (name, image.OWN)
        self.write(slot, 0, warps)
        at = self.layout.at(slot, 0)
        self.lines.append(f"if (threadIdx.x % 32 == 0) store_shared(image, {at} + int(threadIdx.x) / 32, {value});")
        self.read(slot)
        text = f"load_shared(image, {at})"
        for warp in range(1, warps):
            text = both.format(text, f"load_shared(image, {at} + {warp})")
        return self.new(text)

    def add_up(self, target: Access, names: PieceNames, width: int) -> None:
        known = self.sums.get((target.buffer, target.column, width))
        if known is None:
            known = tuple(f"sum{len(self.sums)}_{i}" for i in self.pieces(width))
            self.sums[target.buffer, target.column, width] = known
        for i, total in enumerate(known):
            self.lines.append(f"{total} += {names[min(i, len(names) - 1)]};")

    def commit(self, target: Access, names: PieceNames, width: int) -> None:
        buffer, side = self.buffers[target.buffer], self.side(target, stores=True)
        names = tuple(names[min(i, len(names) - 1)] for i in self.pieces(width))
        if buffer.name in self.imaged:
            self.put(self.slot(side), target.column, names, width)
        rows = self.rows.setdefault(side, [])
        hidden = [h for h in rows if overlap(h, target.column, width) and (h.column, h.width) != (target.column, width)]
        if hidden:  # the image has what is left of them
            self.want(buffer)
        rows.append(Held(target.column, width, names))
        if buffer.kind in (Kind.STREAM, Kind.STATE):
            at = row_at(buffer, target.after)
            for i, name in enumerate(names):
                self.guarded(width, i, f"{at}[{target.column} + {self.own(width, i)}] = {name};")

    def exits(self) -> dict[tuple[str, bool], list[Held]]:
        """What the step leaves in variables for the next one."""
        return {
            side: latest(held)
            for side, held in self.rows.items()
            if self.buffers[side[0]].kind in CARRIED and self.leaves(self.buffers[side[0]], side[1])
        }
