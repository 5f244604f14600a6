"""After a backward sweep: gradients of sources and parameters as calls of a program, as `runtime.recurrent.after` has
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bppsa.codegen.assembling.sweeps import BufferRows
from bppsa.codegen.cpu import calls
from bppsa.runtime.programs.program import Place
from bppsa.runtime.recurrent.programs.products import outer, projection
from bppsa.runtime.recurrent.programs.strided import Param, Strided, past
from bppsa.runtime.recurrent.programs.sweep import SweepCalls


class AfterCalls:
    """swept: all that the backward sweep has read and written, by name. done: gradients of which a part is there."""

    def __init__(self, of: SweepCalls, swept: Mapping[str, Strided], done: set[Place]) -> None:
        self.of, self.swept, self.done, self.to = of, swept, done, of.to

    def write(self, g_sources: Sequence[Place | None], g_params: Sequence[Param | None]) -> None:
        """Where each gradient goes, contiguous; None for those that nobody needs."""
        after, count = self.of.sweep.after, self.of.count
        for product in after.products:
            if (total := g_params[product.weight.param]) is not None:
                left, depth = self.left(product.left)
                part = Param(self.part(total.place, total.count), total.shape)
                outer(self.to, count, left, depth, self.swept["cotangents"], product.runs, part.logical(product.weight))
                self.join(part.place, total.place, total.count)
        for _, stream, runs in after.streams:
            target = g_sources[stream.source]
            if target is not None and stream.weight is not None:
                part_at = self.part(target, count * stream.depth)
                out = Strided(part_at, 0, stream.depth)
                turned = self.of.params[stream.weight.param].logical(stream.weight, turned=True)
                projection(self.to, count, self.swept["cotangents"], turned, runs, out, stream.depth)
                self.join(part_at, target, count * stream.depth)
        for j, runs in after.sums:
            if (total := g_params[j]) is not None:
                part_at, at = self.part(total.place, total.count), 0
                for run in runs:
                    found = self.swept["sums"].past(self.to, run.column).place
                    self.call("copy", found, past(self.to, part_at, at), 0, 0, 1, run.width)
                    at += run.width
                self.join(part_at, total.place, total.count)

    def left(self, at: BufferRows | int) -> tuple[Strided, int]:
        """Rows [T * B, n] and their n."""
        if isinstance(at, int):
            return self.of.sources[at], self.of.depths[at]
        rows = self.swept[at.buffer]
        if at.buffer.startswith("carry"):
            rows = self.of.after_steps(rows) if at.after else self.of.before_steps(rows)
        return rows.past(self.to, at.column), at.width

    def part(self, total: Place, count: int) -> Place:
        """Where the next part of a gradient goes."""
        return self.to.take(count) if total in self.done else total

    def join(self, part: Place, total: Place, count: int) -> None:
        self.done.add(total)
        if part != total:
            self.call("add", part, total, count)
            self.to.free(part)

    def call(self, entry: str, *arguments: Place | int) -> None:
        self.to.call(getattr(calls.entry_points(self.to.dtype), entry), *arguments)
