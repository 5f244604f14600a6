"""From stores to a kernel: the buffers of a recurrence, and those that a lowering asks for, around groups."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from torch import fx

from bppsa.codegen.assembling.group import Grouping
from bppsa.codegen.assembling.meet import grouped
from bppsa.codegen.language.expr import Access
from bppsa.codegen.language.ir import Buffer, Kernel, Kind, accessed
from bppsa.codegen.lowering.lower import Lowering, weight_name
from bppsa.codegen.lowering.roots import Root
from bppsa.codegen.lowering.row import Row, leaf
from bppsa.common.chain import Recurrence, placeholders


def row_of(node: fx.Node) -> Row:
    """The row of a placeholder: parameters are [*n] or [1, *n], values of a step [B, *n]."""
    value, role = node.meta["val"], node.meta["role"]
    return leaf(Access(name_of(node)), int((value if role.kind == "param" else value[0]).numel()))


def name_of(node: fx.Node) -> str:
    """The buffer that a placeholder stands for."""
    role = node.meta["role"]
    return f"{role.kind}{role.index}"


def assemble(
    name: str,
    lowering: Lowering,
    roots: list[Root],
    recurrence: Recurrence,
    *,
    along: bool,
    extra: Sequence[Buffer] = (),
    running: Set[str] = frozenset(),
) -> Kernel:
    """Group the stores and declare the buffers they touch; the states named in `running` are RUNNING instead."""
    saved = sum(root.width for root in roots if root.target.buffer == "saved")
    declared = [replace(b, kind=Kind.RUNNING) if b.name in running else b for b in interface(recurrence)]
    declared += [*extra, Buffer("saved", Kind.STREAM, saved)]
    roots = [
        replace(r, target=replace(r.target, after=r.target.after and r.target.buffer not in running)) for r in roots
    ]
    declared += [Buffer(weight_name(w), Kind.WEIGHT, width, depth) for w, (depth, width) in lowering.weights.items()]
    scratch_widths = list(lowering.scratch_widths)
    known = {b.name: b for b in declared}
    groups = grouped(lambda: Grouping(known, scratch_widths), roots)
    declared += [Buffer(f"scratch{i}", Kind.SCRATCH, width) for i, width in enumerate(scratch_widths)]
    used = accessed(groups)
    return Kernel(name, tuple(b for b in declared if b.name in used), groups, along)


def interface(recurrence: Recurrence) -> list[Buffer]:
    buffers = []
    for i, width in enumerate(recurrence.carries):
        buffers += [Buffer(f"carry{i}", Kind.STATE, width), Buffer(f"g_carry{i}", Kind.RUNNING, width)]
    for k, stream in enumerate(recurrence.streams):
        buffers += [Buffer(f"{name}{k}", Kind.STREAM, stream.width) for name in ("stream", "g_stream")]
    sources = {s.source: s.depth for s in recurrence.streams if s.weight is not None}
    buffers += [Buffer(f"source{i}", Kind.STREAM, depth) for i, depth in sources.items()]
    for k, width in enumerate(recurrence.outputs):
        buffers += [Buffer(f"output{k}", Kind.STREAM, width), Buffer(f"g_output{k}", Kind.STREAM, width)]
    for node in placeholders(recurrence.body, "param"):
        buffers.append(Buffer(f"param{node.meta['role'].index}", Kind.VECTOR, row_of(node).width))
    return buffers
