"""From a recorded model to a program that runs: cut, sizes, what a strategy comes to in each segment, and what is said
about it."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

from bppsa.common.chain import ChainStage
from bppsa.common.graph import nodes_in
from bppsa.decisions import Decision
from bppsa.errors import ChainError, Unsupported
from bppsa.fxpasses.network.cuts import cut
from bppsa.fxpasses.network.pruning import carried
from bppsa.fxpasses.recording.capture import Recording
from bppsa.plan.chain_choice import MACHINES, MARGIN, SCAN, OperationRates, linear_us, scan_us
from bppsa.plan.chain_cost import JacobianSize, ScanLevel, affordable, formed
from bppsa.plan.chain_options import ChainOptions
from bppsa.plan.strategy import Division, Strategy, divide
from bppsa.runtime.chain.feedforward import ChainProgram, real_of
from bppsa.runtime.chain.stages import StageJacobian
from bppsa.sparsity.bounds import most_entries
from bppsa.sparsity.links import NodeMasks
from bppsa.sparsity.operators.transposed import TransposedJacobian

MOST_OPS = 4  # of a stage, named in a report
SHARE = 4  # of the memory there is, what a backward may form by default


@dataclass(frozen=True, eq=False)
class Segment:
    """Stages in a row that have rules, or one that has none; division: the order in which they are combined."""

    stages: tuple[ChainStage, ...]
    extents: tuple[JacobianSize, ...]  # of the stages, in the order of the chain; none without rules
    division: Division | None
    note: str = ""  # what was skipped


def program_of(
    recording: Recording, needs: Sequence[bool], masks: NodeMasks, options: ChainOptions, path: str
) -> tuple[ChainProgram, Decision]:
    """needs: of the graph's placeholders in order, whether each wants a gradient; masks: of those that are pruned
    weights, bool.

    Raises `Unsupported` where nothing can be scanned, ChainError where `options.strict` forbids what would be left out.
    """
    chain = cut(recording)
    if len(chain.stages) < 2:
        raise Unsupported("no two stages in a row: nothing to scan over")
    like = chain.stages[-1].end.meta["val"]
    budget = default_budget(like.device) if options.budget is None else options.budget
    masks = carried(chain.graph, masks)
    segments = [segment_of(stages, masks, options.strategy, budget) for stages in chain.segments]
    if options.strict:
        check(segments, path)
    decision = decided(segments, options.strategy, path, like.device.type)
    forget_stand_ins(chain.graph)
    divisions = {segment.stages[0].start: segment.division for segment in segments if segment.division is not None}
    results = nodes_in(recording.result)
    return ChainProgram(chain, results, needs, divisions, masks), decision


def segment_of(stages: tuple[ChainStage, ...], masks: NodeMasks, strategy: Strategy, budget: int) -> Segment:
    if stages[0].reason is not None:
        return Segment(stages, (), None)
    extents = tuple(extent_of(stage, masks) for stage in stages)
    asked = SCAN if strategy.name == "auto" else strategy
    division, skipped = affordable(divide(asked, len(stages)), extents[::-1], itemsize_of(stages[0].start), budget)
    return Segment(stages, extents, division, skipped)


def itemsize_of(node: fx.Node) -> int:
    """Bytes of an entry of J^T."""
    like = node.meta["val"]
    return real_of(like.dtype, like.device.type).itemsize


def extent_of(stage: ChainStage, masks: NodeMasks) -> JacobianSize:
    """The size of the stage's J^T, from the stand-ins: products and sums of its ops' own."""

    def times(factor: TransposedJacobian, after: JacobianSize | None) -> JacobianSize:
        own = JacobianSize(*factor.shape, most_entries(factor), factor.held)
        return own if after is None else own @ after

    with torch.no_grad():
        return StageJacobian(stage, lambda node: node.meta["val"], masks).walk(None, times, lambda a, b: a + b)


def default_budget(device: torch.device) -> int:
    """Bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // SHARE
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // SHARE


def check(segments: Sequence[Segment], path: str) -> None:
    """Raises ChainError for a stage without a rule, and for a scan that does not fit."""
    for segment in segments:
        last = segment.stages[-1]
        where = ".".join(filter(None, (path, last.path))) or "<model>"
        shape = f"{list(last.start.meta['val'].shape)} -> {list(last.end.meta['val'].shape)}"
        if last.reason is not None:
            raise ChainError(f"{where}: {shape}: {last.reason}, where strict=True wants a rule for every stage")
        if segment.note:
            most = max(segment.extents, key=lambda extent: extent.nnz)
            raise ChainError(
                f"{where}: {shape}: a J^T of {most.rows} x {most.columns} with {most.nnz} non-zeros; the scan "
                f"{segment.note}; give bppsa.compile a larger budget=, prune, or use strategy='sequential'"
            )


def decided(segments: Sequence[Segment], strategy: Strategy, path: str, device: str) -> Decision:
    stages = [stage for segment in segments for stage in segment.stages]
    rows = stages[0].start.meta["val"].shape[0]
    numbers: dict[str, float | int | str] = {"B": rows, "stages": len(stages), "segments": len(segments)}
    details = tuple(line for segment in segments for line in lines(segment))
    scanned = [segment for segment in segments if segment.division is not None]
    if strategy.name == "sequential":
        reason = "one stage after the other is back-propagation, which PyTorch runs"
        return Decision(path, "chain", "pytorch", reason, numbers, details=details)
    notes = [segment.note for segment in segments if segment.note]
    if strategy.name != "auto":
        made = [entry for segment in scanned for entry in levels_of(segment)]
        if made:
            numbers |= {"levels": len(made), "MFLOP": sum(e.flops for e in made) / 1e6}
            numbers |= {"MiB": sum(e.bytes for e in made) / 2**20}
        reason = "; ".join(["as asked" if scanned else "as asked, but no stage has a rule", *notes])
        return Decision(path, "chain", str(strategy), reason, numbers, details=details)
    if not any(segment.division.forms_products for segment in scanned if segment.division is not None):
        reason = next(iter(notes), "finds no two stages with rules in a row")
        return Decision(path, "chain", "pytorch", f"a scan {reason}", numbers, details=details)
    ours, theirs = predicted_us(scanned, rows, MACHINES[device])
    numbers |= {"predicted us": round(ours), "one by one": round(theirs)}
    runs, reason = "pytorch", f"a scan is predicted to take {ours / theirs:.2f} times as long as back-propagation"
    if theirs > MARGIN * ours:
        runs, reason = str(SCAN), f"predicted {theirs / ours:.1f} times as fast"
    return Decision(path, "chain", runs, reason, numbers, details=details)


def predicted_us(segments: Sequence[Segment], rows: int, machine: OperationRates) -> tuple[float, float]:
    """The microseconds of finding the cotangents of all cuts, by scans and one by one."""
    backwards = [(segment.division, segment.extents[::-1]) for segment in segments if segment.division is not None]
    scans = sum(scan_us(division, extents, rows, machine) for division, extents in backwards)
    return scans, sum(linear_us(extents, rows, machine) for _, extents in backwards)


def lines(segment: Segment) -> list[str]:
    """What `explain` shows of a segment: each stage's J^T, and each level of the scan."""
    if segment.division is None:
        (stage,) = segment.stages
        return [f"{named(stage)}: a VJP: {stage.reason}"]
    found = [
        f"{named(stage)}: {stage.structure} {e.rows} x {e.columns}, {e.nnz} non-zeros" + " a sample" * (e.held > 1)
        for stage, e in zip(segment.stages, segment.extents, strict=True)
    ]
    made = levels_of(segment)
    sweep = sum(extent.mv for extent in segment.extents)
    found.append(f"  one after the other: {sweep / 1e6:.3g} MFLOP a sample")
    found += [f"  level {i}: {entry}" for i, entry in enumerate(made)]
    return found + [f"  {segment.note}"] * bool(segment.note)


def levels_of(segment: Segment) -> list[ScanLevel]:
    """What its scan forms."""
    if segment.division is None:
        return []
    return formed(segment.division, segment.extents[::-1], itemsize_of(segment.stages[0].start))


def named(stage: ChainStage) -> str:
    ops = [str(node.target).removeprefix("aten.").partition(".")[0] for node in stage.nodes if is_op(node)]
    shown = ops if len(ops) <= MOST_OPS else [*ops[: MOST_OPS - 1], f"{len(ops) - MOST_OPS + 1} more"]
    return f"{stage.path or '<model>'} ({', '.join(shown)})"


def is_op(node: fx.Node) -> bool:
    return node.target is not operator.getitem


def forget_stand_ins(graph: fx.Graph) -> None:
    """Only their shapes are asked for from here on, and they are as large as all activations together."""
    for node in graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = tree_map_only(Tensor, lambda value: value.detach().to("meta"), node.meta["val"])
