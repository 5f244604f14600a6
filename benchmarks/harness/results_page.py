"""Tables of the results of `benchmarks/recurrent.py`, written between markers in docs/benchmarks.md, those of a
machine with AVX2 alone between their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness import marked
from harness.comparison import Row
from harness.store import Results
from harness.tables import number, quartiles, sizes, times

MARKS = {"AVX2": "results AVX2"}  # of others: "results"


def write(path: Path, results: Results) -> None:
    marked.write(path, MARKS.get(results["machine"]["capability"], "results"), markdown(results))


def markdown(results: Results) -> Iterator[str]:
    last = {part: runs[-1]["rows"] for part, runs in results.items() if part != "machine"}
    entries = dict(by_kind(last))
    if entries:
        kinds = list(dict.fromkeys(kind for _, kind in entries))
        yield from heading("T, B, H (= inputs)", *(f"`nn.{kind}`" for kind in kinds))
        for label in dict.fromkeys(label for label, _ in entries):
            yield line(label, *(entries.get((label, kind), "") for kind in kinds))
        yield ""
    if cells := last.get("cells"):
        yield from heading("a cell of your own, T, B, H", "Python loop", "`bppsa.scan`", "")
        for row in cells:
            times_ms = (f"{number(row[side])} ms" for side in ("peer_ms", "ours_ms"))
            yield line(f"`bppsa.cells.{row['cell']}`, {sizes(row)}", *times_ms, faster(row))
        yield ""
    yield from notes(results, last)


def by_kind(last: dict[str, list[Row]]) -> Iterator[tuple[tuple[str, str], str]]:
    """((line, column), entry) of the table of modules."""
    for row in last.get("steps", ()):
        yield (f"training, {sizes(row)}", row["kind"]), f"{faster(row)}, {number(row['ours_ms'])} ms"
    for row in last.get("peers", ()):
        if row["peer"] != "PyTorch":
            label = f"training, {sizes(row)}, PyTorch by {row['peer']}"
            yield (label, row["kind"]), f"{faster(row)}, {number(row['ours_ms'])} ms"
    for row in last.get("inference", ()):
        yield (f"inference, {sizes(row)}", row["kind"]), f"{faster(row)}, {number(row['ours_ms'])} ms"
    for row in last.get("overhead", ()):
        what = "training" if row["training"] else "inference"
        yield (f"{what}, {sizes(row)}", row["kind"]), f"{faster(row)}, {number(row['ours_us'])} us"
    for row in last.get("first_call", ()):
        cache = "kernels in the disk cache" if row["cache"] == "warm" else "kernels to be built"
        yield (f"first call in a process, {cache}", row["kind"]), f"{number(row['total_ms'])} ms"


def faster(row: Row) -> str:
    return f"**{times(row['ratio']['median'])}** ({quartiles(row['ratio'])})"


def notes(results: Results, last: dict[str, list[Row]]) -> Iterator[str]:
    machine = results["machine"]
    runs = [run for part in ("steps", *results) if part != "machine" for run in results.get(part, ())]
    if runs:
        on = runs[0]["on"]
        changes = " with changes" if on["dirty"] else ""
        yield (
            f"How many times as fast as PyTorch: medians of {on['repeats']} interleaved runs, quartiles in brackets, "
            f"and what it takes. {machine['cpu']}, {machine['cores']} cores, {machine['capability']}; {on['threads']} "
            f"threads; torch {on['torch']}; {on['compiler']}; revision {on['revision']}{changes}, {on['date'][:10]}."
        )
    if memory := last.get("memory"):
        shares = [row["share"] for row in memory]
        yield (
            f"Peak memory of training, above that of the imports: {min(shares):.0%} to {max(shares):.0%} of PyTorch's "
            f"over {len(shares)} shapes."
        )
    if grids := results.get("never_slower"):
        lost = " and ".join(str(sum(row["lost"] for row in run["rows"])) for run in grids)
        yield (
            f"Over a grid of {len(grids[-1]['rows'])} shapes, run {len(grids)} times, PyTorch was faster (by more than "
            f"3 % and the interquartile range) at {lost} of them."
        )


def heading(*columns: str) -> Iterator[str]:
    yield line(*columns)
    yield line("---", *["---:"] * (len(columns) - 1))


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
