"""Table 1: how sparse the J^T of VGG-11's first operators are, and how fast they are written (section 3.3)."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure as Picture

import bppsa
from bppsa.sparsity import TransposedJacobian
from figures import drawing
from figures.figure import QUICK, Figure, Options, Record
from figures.paper import CONV_CSR_MB, CONV_DENSE_MB, TABLE_1, beside
from figures.sparse.networks import IMAGE
from harness import comparison
from rows.sparse_jacobians import COLUMNS, Values, value_cases, values

REPEATS, FEWEST = 15, 2
TIMED = "values of J^T, beside one column at a time"


def measure(options: Options) -> Record:
    quick = options.size == QUICK
    asked = comparison.Options(torch.get_num_threads(), FEWEST if quick else REPEATS, quick)
    rows = {case.name: row(case, asked) for case in value_cases(asked) if case.samples == 1}
    data = f"one image; {COLUMNS} columns timed for all of them{', of 8 x 8 pixels' if quick else ''}"
    return {"data": data, "beside": [line for name in rows for line in besides(name, rows[name])], "rows": rows}


def row(case: Values, asked: comparison.Options) -> Record:
    """Counts of the paper's size, times of the size that is asked for."""
    jt = bppsa.transposed_jacobian(case.layer, torch.zeros(1, case.channels, *IMAGE[1:]))
    (timed,) = values(case, asked)
    return counted(jt) | {name: timed[name] for name in ("ours_us", "written_us", "peer_ms", "ratio")}


def counted(jt: TransposedJacobian) -> Record:
    n, m = jt.shape
    index = 4  # bytes, of a number as of a column
    return {
        "shape": [n, m],
        "nnz": jt.nnz,
        "sparsity": 1 - jt.nnz / (n * m),
        "mib": {"values": megabytes(index * jt.nnz), "CSR": megabytes(2 * index * jt.nnz + index * (n + 1))}
        | {"dense": megabytes(index * n * m)},
    }


def megabytes(count: int) -> float:
    """In MiB, which the paper calls MB."""
    return count / 2**20


def besides(name: str, row: Record) -> list[Record]:
    paper, (n, m) = TABLE_1[name], row["shape"]
    lines = [
        beside(f"{name}: J^T and its possible non-zeros", "", f"{n} x {m}, {row['nnz']}"),
        beside(f"{name}: sparsity, the printed example", paper.example, f"{row['sparsity']:.7f}"),
        beside(f"{name}: sparsity, the printed expression", paper.expression, expression(name, row)),
        beside(f"{name}: {TIMED}", f"{paper.times:,.0f}x", f"{row['ratio']['median']:,.0f}x"),
    ]
    if name == "conv 3->64":
        mib = row["mib"]
        sizes = f"{mib['values']:.2f} of values, {mib['CSR']:.2f} with columns and rows; dense {mib['dense']:.0f}"
        lines.append(beside(f"{name}: MB of J^T", f"{CONV_CSR_MB} in CSR, dense {CONV_DENSE_MB}", sizes))
    return lines


def expression(name: str, row: Record) -> str:
    value = TABLE_1[name].value
    exact = math.isclose(value, row["sparsity"], rel_tol=0, abs_tol=1e-12)
    note = "exact" if exact else "without the border; exact is 1 - (3 hi - 2) (3 wi - 2) / (hi wi)^2"
    return f"{value:.7f}, {note}"


def draw(record: Record) -> Picture:
    picture, (density, times) = drawing.panels(1, 2)
    rows = record["rows"]
    ours = [(1 - row["sparsity"], row["ratio"]["median"]) for row in rows.values()]
    printed = [(1 - TABLE_1[name].value, TABLE_1[name].times) for name in rows]
    for at, axes in enumerate((density, times)):
        places = range(len(rows))
        axes.bar([x - 0.2 for x in places], [pair[at] for pair in printed], 0.4, color="lightgray", label="the paper")
        axes.bar([x + 0.2 for x in places], [pair[at] for pair in ours], 0.4, color="tab:blue", label="here")
        axes.set(yscale="log", xticks=places, xticklabels=list(rows))
        axes.legend()
    density.set(title="entries of J^T that can be non-zero", ylabel="part of all; the paper: its expressions")
    times.set(title=TIMED, ylabel="times as fast; the paper: Threadripper 1950X")
    return picture


FIGURE = Figure("Table 1: guaranteed zeros of VGG-11's operators, and the time to write the rest", measure, draw)
