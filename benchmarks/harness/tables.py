"""The rows of each part as a table on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.markup import escape
from rich.table import Table

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]


def number(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def times(value: float | None) -> str:
    return "-" if value is None else f"{number(value)}x"


def millions(count: int) -> str:
    return number(count / 1e6)


def quartiles(spread: Row) -> str:
    return f"{number(spread['low'])}-{number(spread['high'])}"


def sizes(row: Row) -> str:
    return f"{row['T']}, {row['B']}, {row['H']}" + (" float64" if row.get("dtype") == "float64" else "")


def value(key: str) -> Callable[[Row], str]:
    return lambda row: number(row.get(key)) if isinstance(row.get(key), (int, float)) else str(row.get(key, "-"))


def ratio(key: str) -> Callable[[Row], str]:
    return lambda row: times(row[key]["median"])


def goal_of(key: str, goal: str) -> Callable[[Row], str]:
    """Green where it is reached."""

    def cell(row: Row) -> str:
        if row.get(goal) is None:
            return ""
        return f"[{'green' if row[key]['median'] >= row[goal] else 'red'}]{times(row[goal])}"

    return cell


def share(key: str) -> Callable[[Row], str]:
    return lambda row: f"{row[key]:.0%}"


def at_most(key: str, limit: str) -> Callable[[Row], str]:
    return lambda row: f"[{'green' if row.get(key, 0) <= row[limit] else 'red'}]{number(row[limit])}"


def listed(counts: list[int]) -> str:
    return ", ".join(map(str, counts))


def both(measured: Row, predicted: Row) -> str:
    return ", ".join(f"{way} {number(ms)} ({number(predicted[way])})" for way, ms in measured.items())


KIND: tuple[Column, ...] = (("", value("kind")), ("T, B, H", sizes))
MS: tuple[Column, ...] = (("PyTorch ms", value("peer_ms")), ("bppsa ms", value("ours_ms")))
RATIO: tuple[Column, ...] = (("ratio", ratio("ratio")), ("quartiles", lambda row: quartiles(row["ratio"])))
PHASES: tuple[Column, ...] = (("forward", ratio("forward")), ("backward", ratio("backward")))
GOAL: tuple[Column, ...] = (("goal", goal_of("ratio", "goal")),)
NET: tuple[Column, ...] = (("", value("net")), ("B", value("B")))
SCHEDULE: tuple[Column, ...] = tuple((name, value(name)) for name in ("schedule", "S", "B", "W"))
STRATEGY: tuple[Column, ...] = (("ran", value("strategy")),)
SPARSE: tuple[Column, ...] = (
    ("", value("product")),
    ("pruned", lambda row: f"{row['pruned']:.0%}"),
    ("nnz, M", lambda row: ", ".join(map(millions, row["nnz"]))),
    ("scipy ms", value("scipy_ms")),
    ("torch ms", value("torch_ms")),
    ("ours ms", value("ours_ms")),
    RATIO[0],
    *GOAL,
    ("16 ms", value("lanes_ms")),
    ("a sample", ratio("lanes_ratio")),
    ("B shared", ratio("lanes_shared_ratio")),
    ("goal", goal_of("lanes_shared_ratio", "lanes_goal")),
    ("difference", value("difference")),
)

COLUMNS: dict[str, tuple[Column, ...]] = {
    "steps": (
        *KIND,
        *MS,
        *RATIO,
        *GOAL,
        ("bound", lambda row: times(row["bound"])),
        *PHASES,
        *STRATEGY,
        ("difference", value("difference")),
    ),
    "peers": (*KIND, ("peer", value("peer")), ("peer ms", value("peer_ms")), MS[1], *RATIO),
    "cells": (("", value("cell")), ("T, B, H", sizes), ("loop ms", value("peer_ms")), MS[1], *RATIO, *GOAL, *PHASES),
    "literature": (("", value("cell")), ("loop ms", value("peer_ms")), MS[1], *RATIO, *PHASES),
    "states": (
        *(
            ("", value("cell")),
            ("T", value("T")),
            ("B", value("B")),
            ("loop ms", value("peer_ms")),
            MS[1],
            *RATIO,
            *PHASES,
        ),
        *(("loop keeps", value("loop_mb")), ("ours, MB", value("kept_mb"))),
        *(("of peak flops", share("flops_share")), ("of memory", share("bytes_share"))),
    ),
    "chunked": (
        *(("", value("cell")), ("T", value("T")), ("B", value("B")), ("chunk", value("chunk"))),
        *(("chunked ms", value("peer_ms")), MS[1], *RATIO, *PHASES, ("difference", value("difference"))),
    ),
    "loops": (
        *(("", value("loop")), ("T", value("T")), ("H", value("H")), ("PyTorch ms", value("peer_ms")), MS[1], *RATIO),
        *(("first calls s", value("first_s")), ("as", value("as"))),
    ),
    "inference": (*KIND, *MS, *RATIO, *GOAL),
    "overhead": (
        *KIND,
        ("", lambda row: "training" if row["training"] else "no_grad"),
        ("PyTorch us", value("peer_us")),
        ("bppsa us", value("ours_us")),
        *RATIO,
        *STRATEGY,
        ("fused us", value("fused_us")),
        ("its sweeps", value("sweeps_us")),
        ("its kernels", value("kernels_us")),
        ("over these", value("over_us")),
        ("goal", at_most("over_us", "goal_us")),
    ),
    "never_slower": (*KIND, *MS, *RATIO, *PHASES, *STRATEGY),
    "first_call": (
        ("", value("kind")),
        ("cache", value("cache")),
        ("compile ms", value("compile_ms")),
        ("forward ms", value("forward_ms")),
        ("backward ms", value("backward_ms")),
        ("total ms", value("total_ms")),
        ("goal", at_most("total_ms", "goal_ms")),
    ),
    "row_sweeps": tuple((name, value(name)) for name in ("kernel", "B=1", "B=16", "B=64", "B=256", "modelled")),
    "gpu": (
        *KIND,
        ("way", value("way")),
        ("ran", value("ran")),
        ("forward", value("forward")),
        ("forward ms", value("forward_ms")),
        ("backward ms", value("backward_ms")),
        ("wall ms", value("wall_ms")),
        ("ratio", lambda row: times(row["ratio"]["median"]) if "ratio" in row else ""),
        ("launches", value("launches")),
        ("difference", value("difference")),
        ("", lambda row: escape((row.get("error") or row.get("reason", ""))[:60])),
    ),
    "products": (
        *SPARSE[:3],
        ("density", value("density")),
        ("products, M", lambda row: millions(row["products"])),
        ("plan ms", value("symbolic_ms")),
        *SPARSE[3:],
    ),
    "scalings": SPARSE,
    "vectors": tuple(("J shared", cell) if name == "B shared" else (name, cell) for name, cell in SPARSE),
    "auto": (*NET, *MS, *RATIO, *GOAL),
    "strategies": (
        *NET,
        ("stages", value("stages")),
        ("", value("strategy")),
        *MS,
        RATIO[0],
        ("levels", value("levels")),
        ("MFLOP", value("MFLOP")),
        ("MiB", value("MiB")),
    ),
    "values": (
        ("", value("operator")),
        ("N x M", lambda row: " x ".join(map(str, row["shape"]))),
        ("nnz, M", lambda row: millions(row["nnz"])),
        ("us", value("ours_us")),
        ("written us", value("written_us")),
        ("over written", value("over_written")),
        ("most", lambda row: times(row.get("limit"))),
        ("columns ms", value("peer_ms")),
        ("ratio", ratio("ratio")),
        ("goal", lambda row: times(row.get("goal"))),
    ),
    "jacobian": (
        ("", value("network")),
        ("N = M", value("N")),
        ("nnz, M", lambda row: millions(row["nnz"])),
        ("colours", value("colours")),
        ("plan ms", value("plan_ms")),
        ("jacrev ms", value("peer_ms")),
        *MS[1:],
        ("plan(x) ms", value("call_ms")),
        ("ratio", ratio("ratio")),
        ("goal", lambda row: times(row["goal"])),
        ("difference", value("difference")),
    ),
    "choice": (
        *KIND,
        ("", lambda row: "training" if row["training"] else "no_grad"),
        ("auto", value("auto")),
        ("best", value("best")),
        ("over best", lambda row: times(row["over_best"])),
        ("over PyTorch", lambda row: times(row["over_pytorch"])),
        ("ms measured (predicted)", lambda row: both(row["measured_ms"], row["predicted_ms"])),
    ),
    "schedules": (
        *SCHEDULE,
        ("F ms", lambda row: number(row["job_ms"]["F"])),
        ("B ms", lambda row: number(row["job_ms"]["B"])),
        ("predicted ms", value("predicted_ms")),
        ("measured ms", value("measured_ms")),
        ("over", value("over")),
        ("step ms", value("step_ms")),
        ("over", value("step_over")),
        ("peaks simulated", lambda row: listed(row["peaks_simulated"])),
        ("measured", lambda row: listed(row["peaks_measured"])),
    ),
    "pipelines": (
        ("jobs", value("jobs")),
        *SCHEDULE[:3],
        ("PyTorch's", value("peer")),
        *MS,
        *RATIO,
        ("difference", value("difference")),
    ),
    "workers": (("jobs", value("jobs")), *SCHEDULE, *MS, *RATIO, ("difference", value("difference"))),
    "many": (
        ("schedule", value("schedule")),
        ("ranks", value("ranks")),
        ("s to start", value("start_s")),
        ("s to cut", value("cut_s")),
        ("first step s", value("first_step_s")),
        ("step s", value("step_s")),
        ("MiB a rank", value("MiB")),
    ),
    "waves": (
        ("", value("way")),
        ("waves", value("waves")),
        ("S", value("S")),
        ("step s", value("step_s")),
        ("peak, simulated", value("peaks_simulated")),
        ("measured", value("peaks_measured")),
        ("MiB, simulated", value("simulated_MiB")),
        ("measured", value("peak_MiB")),
        ("mean MiB, simulated", value("simulated_mean_MiB")),
        ("measured", value("mean_MiB")),
    ),
    "memory": (
        *KIND,
        ("PyTorch MiB", value("peer_MiB")),
        ("bppsa MiB", value("ours_MiB")),
        ("share", lambda row: f"{row['share']:.0%}"),
    ),
}

TITLES = {
    "steps": "A training step: forward, backward, all gradients. bound: if it were matmuls alone",
    "peers": "What else can be run (the loop is why T is small; Dynamo leaves nn.GRU and its like to PyTorch)",
    "cells": "A training step of cells from bppsa.cells, against a Python loop over the same cell",
    "states": "States with heads or matrices: a training step and what it keeps, beside a Python loop's",
    "chunked": "Matrix states beside the chunked forms of their papers in plain torch, of the best chunk length",
    "literature": "A training step of cells of the literature, against a Python loop over the same cell",
    "loops": "A training step of models with a loop over time, against PyTorch; first calls: logged, and compared",
    "inference": "Inference, no_grad",
    "overhead": "What a call costs over its kernels",
    "never_slower": "Where PyTorch is faster: median ratio below 0.97 by more than the interquartile range",
    "first_call": "The first call of a cell in a new process, forward and backward",
    "row_sweeps": "Microseconds of a step of a sweep alone, by rows; modelled: for one warp of an sm_90",
    "gpu": "A training step on a CUDA device, by its clock; ratio: cuDNN's over ours; launches: of the backward",
    "products": "Products of transposed Jacobians, one sample and 16 as lanes; ratios to the faster peer",
    "scalings": "J^T of a convolution times that of the ReLU after it",
    "vectors": "J^T times a vector, and times one a sample",
    "auto": "Feed-forward nets, forward and backward: auto, which leaves them to PyTorch",
    "strategies": "The backward of feed-forward nets by an explicit strategy",
    "values": "Values of J^T; columns: one at a time by autograd; written: a copy of as many numbers",
    "jacobian": "bppsa.jacobian of three convolutions with tanh between them, beside torch.func.jacrev",
    "choice": "What auto chose, where it was furthest from the best",
    "memory": "Peak memory of a process above its imports, after 5 training steps",
    "schedules": "Two ranks: measured makespan and step over the simulated makespan, with the times that jobs took",
    "pipelines": "Two ranks: PyTorch's own pipelines, DDP and FSDP beside the same schedule",
    "workers": "One process, workers that are threads: a loop over the same micro-batches beside a schedule",
    "many": "Many ranks of a tiny model on this machine: the slowest rank, and the largest",
    "waves": "Memory of one device in a step: waves one after the other, and in tick-tock",
}


def terminal(part: str, rows: list[Row]) -> Table:
    shown = [row for row in rows if row["lost"]] if part == "never_slower" else rows
    title = TITLES[part] if shown is rows else f"{TITLES[part]}: {len(shown)} of {len(rows)}"
    table = Table(title=title, title_justify="left", title_style="bold")
    for place, (header, _) in enumerate(COLUMNS[part]):
        table.add_column(header, justify="right" if place > 1 else "left", no_wrap=True)
    for row in shown:
        table.add_row(*(cell(row) for _, cell in COLUMNS[part]))
    return table
