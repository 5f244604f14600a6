"""A recurrence as kernels: the forward sweep, the backward sweep, and the matmuls that stand around them.

What the forward sweep saves for the backward takes the place of a stream's columns that nothing reads any more where
there are any, so that gates overwrite their own pre-activations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from bppsa.codegen.assembling.inplace import reuse_streams
from bppsa.codegen.assembling.sweeps import BackwardLowering, ForwardLowering, OuterSum, projections
from bppsa.codegen.language.ir import Kernel, Kind, read_by
from bppsa.codegen.language.verify import verify
from bppsa.codegen.lowering.lower import ColumnRun
from bppsa.common.chain import Recurrence, Transposed


@dataclass(frozen=True)
class Program:
    """What `runtime.recurrent.sweep` runs. Buffers are named "carry{i}" (STATE), "stream{k}", "output{k}", "param{j}",
    "weight{j}[t]", and in the backward also "g_carry{i}" (RUNNING), "g_output{k}", "g_stream{k}", "cotangents",
    "operands" and "sums"; "saved" is both's."""

    recurrence: Recurrence
    forward: Kernel
    inference: Kernel  # saves nothing; carries that are no output are RUNNING
    replay: Kernel  # the forward where all states are known: stores only what it saves, no step waits for another
    backward: Kernel
    output_carry: tuple[int | None, ...]  # output k is the state of carry i after the step
    outers: tuple[OuterSum, ...]
    # Where in "cotangents" those of each stream stand that is a product; those of another are "g_stream{k}".
    stream_runs: tuple[tuple[ColumnRun, ...] | None, ...]
    sum_runs: tuple[tuple[int, tuple[ColumnRun, ...]], ...]  # (parameter, where in "sums")
    apart: tuple[Kernel, Kernel]  # forward and backward, where "saved" shares no columns with a stream

    @cached_property
    def recomputing(self) -> tuple[Kernel, Kernel]:
        """A forward that writes nothing but states and what is saved, to be run again from any state, and the backward
        that reads them."""
        forward, backward = self.apart
        again = replace(without_outputs(forward), name="recompute")
        same = replace(backward, name=self.backward.name) == self.backward
        return verify(again), self.backward if same else verify(replace(backward, name="backward apart"))


def build(recurrence: Recurrence, transposed: Transposed, *, inline: bool = False) -> Program:
    """`inline`: the forward sweep multiplies x with its weight itself, step by step, instead of reading the product of
    all steps. Raises `Unsupported` for what the kernel language has no words for."""
    forward = ForwardLowering(recurrence, inline)
    backward = BackwardLowering(forward, transposed)
    lowered = forward.kernel(backward.saved), backward.kernel()
    apart = reuse_streams(*lowered, {})
    kernels = reuse_streams(*lowered, projections(recurrence))
    return Program(
        recurrence,
        verify(kernels[0]),
        verify(forward.inference()),
        verify(replay(*kernels)),
        verify(kernels[1]),
        forward.output_carry,
        backward.outers,
        backward.stream_runs,
        backward.sum_runs,
        (apart[0], apart[1]),
    )


def without_outputs(kernel: Kernel) -> Kernel:
    """A forward kernel without the outputs, and what only they need."""
    unread = {b.name for b in kernel.buffers if b.name.startswith("output")}
    groups = kernel.groups
    while unread:
        kept = [replace(g, stores=tuple(s for s in g.stores if s.target.buffer not in unread)) for g in groups]
        groups = tuple(group for group in kept if group.stores)
        scratch = {b.name for b in kernel.buffers if b.kind is Kind.SCRATCH}
        stored = {store.target.buffer for group in groups for store in group.stores}
        unread = (scratch & stored) - read_by(groups)
    return kernel.with_groups(groups)


def replay(forward: Kernel, backward: Kernel) -> Kernel:
    """The forward kernel without the stores of states, and what only they need; with every stream that the backward
    reads."""
    states = {b.name for b in forward.buffers if b.kind is Kind.STATE}
    kept = [(group, tuple(s for s in group.stores if s.target.buffer not in states)) for group in forward.groups]
    groups = (replace(group, stores=stores) for group, stores in kept if stores)
    streams = (b.name for b in backward.buffers if b.kind is Kind.STREAM)
    return replace(forward, name="replay").with_groups(groups, streams)
