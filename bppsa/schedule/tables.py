"""Table 1 of Unifying Parallelization Schemes: its formulas beside what a simulation gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from bppsa.schedule.compare import in_columns
from bppsa.schedule.job_graph.spec import Recipe
from bppsa.schedule.simulator import simulate
from bppsa.schedule.timeline import Timeline
from bppsa.schedule.zoo import ddp, fsdp, fslpp, lpp, one_f_one_b

COLUMNS: dict[str, Callable[[Timeline], list[Any]]] = {
    "latency": lambda timeline: [Fraction(timeline.makespan, 2)],  # in units of a forward and a backward
    "activations received": lambda timeline: timeline.activation_receives,
    "weights received": lambda timeline: timeline.weight_receives,
    "activations stored": lambda timeline: timeline.peak_activations,
    "weights stored": lambda timeline: timeline.weight_storage,
}


def formulas(S: int, B: int, G: int, R: int) -> dict[str, tuple[Recipe, tuple[Any, ...]]]:
    """The paper's rows: the schedule, and its columns in the order of COLUMNS."""
    m = Fraction(B, G)  # micro-batches of a group
    loops = Fraction(S, R)  # stages of a worker
    latency, stored = S + m - 1, loops * min(Fraction(S), m)
    return {
        "DDP": (ddp(), (S, 0, 0, S, S)),
        "FSDP": (fsdp(), (S, 0, S - 1, S, 1)),
        "PP": (one_f_one_b(), (B + S - 1, B, 0, min(S, B), 1)),
        "LPP": (lpp(G, R), (latency, B, 0, stored, loops)),
        "FSLPP": (fslpp(G, R), (latency, B, S - 1, stored, 1)),
    }


# Why a simulation gives something else.
FIRST = "the first stage reads data, not what another worker made"
RECEIVES = "a worker runs S/R stages of B/G micro-batches, and none comes from elsewhere where R = 1"
STORES = "S/R stages of all B/G micro-batches: forwards first keeps all of them, which a limit in flight would not"
LATENCY = "R workers take S/R stages each: with m = B/G micro-batches it is S + m - 1 up to m = R, mS/R + R - 1 beyond"
REASONS = {
    ("FSDP", "weights received"): "a worker that owns no stage fetches all S; W = B leaves B - S of them",
    ("FSDP", "weights stored"): "S stages over W = B workers: none for some where B > S, several where B < S",
    ("PP", "activations received"): FIRST,
    ("PP", "activations stored"): "stage s has min(S - s, B) in flight; the paper's is stage 0",
    ("LPP", "latency"): LATENCY,
    ("LPP", "activations received"): RECEIVES,
    ("LPP", "activations stored"): STORES,
    ("LPP", "weights stored"): "S stages over R workers, and groups without a micro-batch own none",
    ("FSLPP", "latency"): LATENCY,
    ("FSLPP", "activations received"): RECEIVES,
    ("FSLPP", "weights received"): "one a forward job whose stage another worker owns: S/R stages of B/G micro-batches",
    ("FSLPP", "activations stored"): STORES,
    ("FSLPP", "weights stored"): "S stages over W = G*R workers: none for some where S < W, several where S > W",
}


@dataclass(frozen=True)
class TableCell:
    """A formula of the paper and the least and greatest simulated value over the workers."""

    paper: Any
    least: Any
    greatest: Any
    reason: str  # why they differ; empty where no worker does

    def __str__(self) -> str:
        span = f"{self.least}" if self.least == self.greatest else f"{self.least} to {self.greatest}"
        return f"{self.paper} / {span}{' *' if self.reason else ''}"


@dataclass(frozen=True)
class Table1:
    """cells[scheme, column]; prints as the paper's table with paper / simulated, and the reasons below."""

    cells: dict[tuple[str, str], TableCell]

    def __str__(self) -> str:
        schemes = dict.fromkeys(scheme for scheme, _ in self.cells)
        rows = [["", *COLUMNS], *([scheme, *(str(self.cells[scheme, c]) for c in COLUMNS)] for scheme in schemes)]
        lines = in_columns(rows, str.ljust)
        where: dict[str, list[str]] = {}
        for (scheme, column), cell in self.cells.items():
            where.setdefault(f"{column}: {cell.reason}" if cell.reason else "", []).append(scheme)
        where.pop("", None)
        reasons = [f"* {' and '.join(of)}, {reason}" for reason, of in where.items()]
        return "\n".join(["paper / simulated", *lines, *reasons])


def table1(S: int, B: int, G: int, R: int) -> Table1:
    """Return Table 1 of Unifying Parallelization Schemes for these numbers, each formula beside the simulation.

    Stages take one step forward and one backward. Where any worker's value is not the formula's, the cell is marked and
    the reason given. LPP and FSLPP have W = G*R.
    """
    cells = {}
    for scheme, (recipe, paper) in formulas(S, B, G, R).items():
        timeline = simulate(recipe, S=S, B=B)
        for (column, read), formula in zip(COLUMNS.items(), paper, strict=True):
            found = read(timeline)
            same = min(found) == max(found) == formula
            cells[scheme, column] = TableCell(formula, min(found), max(found), "" if same else REASONS[scheme, column])
    return Table1(cells)
