"""Print a kernel as one CUDA function: a block sweeps one row, all of its steps, and stops where the row ends.

The steps run in batches of `AHEAD`. While a batch runs, what the next one reads of memory is on its way. What threads
need of each other goes through shared memory, and they wait for each other where the printer sees that one could read
what another has not written, or write what another has not read (`image.Waiting`), over the end of a step too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from bppsa.codegen.gpu.cuda.held import Fetch, Held
from bppsa.codegen.gpu.cuda.image import ENTRY, EXIT, Waiting
from bppsa.codegen.gpu.cuda.lanes import Lanes, lanes_of
from bppsa.codegen.gpu.cuda.skeleton import TEXT, functions, indented
from bppsa.codegen.gpu.cuda.step import ThreadPrinter
from bppsa.codegen.gpu.cuda.text import row_at
from bppsa.codegen.language.ir import Buffer, Kernel, Kind
from bppsa.errors import Reason, Unsupported

AHEAD = 4  # steps of a batch, an even number; the next batch is fetched meanwhile
MOST_FETCHED = 16  # numbers of a step beyond which a batch is of two
STRIDES = {
    Kind.STREAM: ("t", "b"),
    Kind.STATE: ("t", "b"),
    Kind.RUNNING: ("b",),
    Kind.VECTOR: (),
    Kind.WEIGHT: ("k", "n"),
    Kind.COLUMN_SUM: (),  # one row of sums a block
}


@dataclass(frozen=True)
class CudaText:
    """source: C++ for NVRTC, with a function `sweep` that a block of `lanes.threads` threads runs for each row.
    parameters: its arguments: of each buffer the address and strides in elements, then lengths, steps and so on.
    batch: steps of one turn of its loop. image: numbers of shared memory."""

    source: str
    lanes: Lanes
    batch: int
    image: int
    parameters: tuple[tuple[str, str], ...]  # type and name


@functools.lru_cache(maxsize=256)
def printed(kernel: Kernel, real: str) -> CudaText | Reason:
    """`real` is "float" or "double"."""
    lanes = lanes_of(kernel, real)
    if isinstance(lanes, Reason):
        return lanes
    try:
        return RowPrinter(kernel, lanes).text(real)
    except Unsupported as refused:
        return refused.reason


class RowPrinter:
    def __init__(self, kernel: Kernel, lanes: Lanes) -> None:
        self.kernel, self.lanes = kernel, lanes
        self.step = settled(kernel, lanes)
        self.carried = {
            side: [Held(h.column, h.width, self.names(side[0], h)) for h in held]
            for side, held in self.step.exits().items()
        }
        entries = {(name, not after): held for (name, after), held in self.carried.items()}  # of the next step
        self.step = settled(kernel, lanes, entries)

    def names(self, buffer: str, held: Held) -> tuple[str, ...]:
        return tuple(f"{buffer}_{held.column}_{held.width}_{i}" for i in range(self.lanes.pieces(held.width)))

    # ---- the text's parts

    def text(self, real: str) -> CudaText:
        step = self.step
        fetched = sum(self.lanes.pieces(f.width) for f in step.fetches)
        batch = AHEAD if fetched <= MOST_FETCHED else 2
        image = max(1, 2 * step.layout.size)
        parameters = tuple(self.parameters(real))
        body = [*step.lines, *self.carry()]
        if not step.is_met and any(fetch.buffer.name in step.stored for fetch in step.fetches):
            body.insert(0, "MEET;")  # all threads have fetched of a row what one stores there
        source = TEXT.format(
            name=self.kernel.name,
            real=real,
            functions=functions(),
            units=self.lanes.units,
            parts=self.lanes.parts,
            meet="__syncwarp()" if self.lanes.warps == 1 else "__syncthreads()",
            threads=self.lanes.threads,
            parameters=", ".join(f"{kind} {name}" for kind, name in parameters),
            size=image,
            batch=batch,
            fetched=max(1, fetched),
            before=indented(self.before(), 1),
            entering=indented(self.entering(), 2),
            fetch_first=indented(self.fetching("0", batch), 2),
            fetch_next=indented(self.fetching(f"i + {batch}", batch), 3),
            step=indented(body, 4),
            last_step=indented(body, 3),
            leaving=indented(self.leaving(), 2),
            after=indented(self.after(), 1),
        )
        return CudaText(source, self.lanes, batch, image, parameters)

    def parameters(self, real: str) -> Iterator[tuple[str, str]]:
        for b in self.kernel.arguments:
            yield f"{real}*", f"{b.name}_at"
            for stride in STRIDES[b.kind]:
                yield "long long", f"{b.name}_{stride}"
        yield "const long long*", "lengths"
        for name in ("steps", "direction", "reverse"):
            yield "int", name

    def before(self) -> Iterator[str]:
        """What a thread knows before its first step: where its row is, what it owns, vectors and weights."""
        for b in self.kernel.arguments:
            if "b" in STRIDES[b.kind]:
                yield f"real* const {b.name}_row = {b.name}_at + row * {b.name}_b;"
        for width in sorted(self.widths() - {1}):
            for i in range(self.lanes.pieces(width)):
                own = f"unit + {i * self.lanes.units}"
                yield f"const int own{width}_{i} = {own} < {width} ? {own} : {width - 1};"
        for (name, column, width), known in self.step.vectors.items():
            for i in range(self.lanes.pieces(width)):
                yield f"const real {known}_{i} = {name}_at[{column} + {self.step.own(width, i)}];"
        yield from self.held_weights()
        for names in self.step.sums.values():
            for name in names:
                yield f"real {name} = 0;"

    def held_weights(self) -> Iterator[str]:
        for weight, name in self.step.weights.items():
            number = weight.held(self.lanes)
            term = "4 * (k / 4 * PARTS + part) + k % 4" if weight.in_quads(self.lanes) else "k * PARTS + part"
            for i in range(self.lanes.pieces(weight.width)):
                at = f"term * {weight.name}_k + ({weight.column} + {self.step.own(weight.width, i)}) * {weight.name}_n"
                yield f"real {name}_{i}[{number}];"
                yield "#pragma unroll"
                yield f"for (int k = 0; k < {number}; ++k) {{"
                yield f"    const int term = {term};"
                yield f"    {name}_{i}[k] = term < {weight.depth} ? {weight.name}_at[{at}] : real(0);"
                yield "}"

    def widths(self) -> set[int]:
        """The widths of all groups of columns that threads own."""
        rows = [b.width for b in self.kernel.buffers if b.name in self.step.imaged]
        parts = [h.width for held in self.carried.values() for h in held]
        asked = [f.width for f in self.step.fetches] + [g.width for g in self.kernel.groups]
        sums = [width for _, _, width in (*self.step.sums, *self.step.vectors)]
        return {*rows, *parts, *asked, *sums}

    def entering(self) -> Iterator[str]:
        """What the first step finds of the step before: in memory."""
        yield "const long long t = first;"
        for side, held in self.carried.items():
            buffer, at = self.entry(side)
            for h in held:
                for i, name in enumerate(h.names):
                    yield f"real {name} = {at}[{h.column} + {self.step.own(h.width, i)}];"
            if buffer.name in self.step.imaged:
                for slot in (ENTRY, EXIT):  # columns that no step stores into are in both
                    place = self.step.layout.at((buffer.name, slot), 0).replace("odd", "0")
                    for i in range(self.lanes.pieces(buffer.width)):
                        own = self.step.own(buffer.width, i)
                        yield f"store_shared(image, {place} + {own}, {at}[{own}]);"

    def entry(self, side: tuple[str, bool]) -> tuple[Buffer, str]:
        """The buffer, and the address of the row that the first step starts from."""
        buffer = self.step.buffers[side[0]]
        return buffer, f"{buffer.name}_row" if buffer.kind is Kind.RUNNING else row_at(buffer, not side[1])

    def fetching(self, since: str, batch: int) -> Iterator[str]:
        """What a batch reads of memory; behind the last step its row once more."""
        if not self.step.fetches:
            return
        yield "#pragma unroll"
        yield f"for (int u = 0; u < {batch}; ++u) {{"
        yield f"    const int s = {since} + u < count ? {since} + u : count - 1;"
        yield "    const long long t = first + s * direction;"
        for fetch, first in self.step.fetches.items():
            for i in range(self.lanes.pieces(fetch.width)):
                column = f"{fetch.column} + {self.step.own(fetch.width, i)}"
                yield f"    ahead[u][{first + i}] = {self.fetched(fetch)}[{column}];"
        yield "}"

    @staticmethod
    def fetched(fetch: Fetch) -> str:
        return f"{fetch.buffer.name}_row" if fetch.buffer.kind is Kind.RUNNING else row_at(fetch.buffer, fetch.after)

    def carry(self) -> Iterator[str]:
        """What one carries on of another is read before that one changes."""
        new = self.step.exits()
        pairs = [
            (name, value)
            for side, held in self.carried.items()
            for h, made in zip(held, new[side], strict=True)
            for name, value in zip(h.names, made.names, strict=True)
        ]
        carried = {name for name, _ in pairs}
        for name, value in pairs:
            if value in carried:
                yield f"const real next_{name} = {value};"
        for name, value in pairs:
            yield f"{name} = {f'next_{name}' if value in carried else value};"

    def leaving(self) -> Iterator[str]:
        """A RUNNING's last values: columns that were stored over in part are in the image."""
        finals = [
            (side, held) for side, held in self.carried.items() if self.step.buffers[side[0]].kind is Kind.RUNNING
        ]
        if finals:
            yield "MEET;"  # others may still read what they start from
        for side, held in finals:
            buffer = self.step.buffers[side[0]]
            covered = {(h.column, h.column + h.width) for h in held}
            for low, high in sorted(self.step.stored[buffer.name] - covered):
                for i in range(self.lanes.pieces(high - low)):
                    place = self.step.layout.at((buffer.name, ENTRY), low).replace("odd", "(count % 2)")
                    own = self.step.own(high - low, i)
                    yield f"{buffer.name}_row[{low} + {own}] = load_shared(image, {place} + {own});"
            for h in held:
                for i, name in enumerate(h.names):
                    yield f"{buffer.name}_row[{h.column} + {self.step.own(h.width, i)}] = {name};"

    def after(self) -> Iterator[str]:
        for (name, column, width), names in self.step.sums.items():
            buffer = self.step.buffers[name]
            for i, total in enumerate(names):
                yield f"{name}_at[row * {buffer.width} + {column} + {self.step.own(width, i)}] = {total};"


def settled(kernel: Kernel, lanes: Lanes, entries: dict[tuple[str, bool], list[Held]] | None = None) -> ThreadPrinter:
    """A step as it is printed once it is known which rows others read, and what the step before has left unread."""
    imaged: dict[str, int] = {}
    waiting = Waiting()
    while True:
        left = Waiting({slot: set(r) for slot, r in waiting.written.items()}, set(waiting.read))
        step = ThreadPrinter(kernel, lanes, imaged, entries or {}, left)
        if step.wanted:
            imaged = {**imaged, **step.wanted}
            waiting = Waiting()
            continue
        after = waiting | step.waiting.of_next_step()
        if after == waiting:
            return step
        waiting = after
