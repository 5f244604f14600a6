"""A short table of all results, written between the markers in README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from parts import Row
from store import Results
from tables import number, quartiles, ratio, sizes, times

RESULTS = re.compile(r"(<!-- results -->\n).*?(<!-- /results -->)", re.DOTALL)


def write(path: Path, results: Results) -> None:
    text = path.read_text()
    if not RESULTS.search(text):
        raise SystemExit(f"{path} has no place for results: <!-- results --> ... <!-- /results -->")
    body = "\n".join(markdown(results))
    path.write_text(RESULTS.sub(lambda found: f"{found[1]}{body}\n{found[2]}", text))


def markdown(results: Results) -> Iterator[str]:
    last = {part: runs[-1]["rows"] for part, runs in results.items() if part != "machine"}
    if steps := last.get("steps"):
        kinds = list(dict.fromkeys(row["kind"] for row in steps))
        yield from heading("T, B, H (= inputs)", *(f"`nn.{kind}`" for kind in kinds))
        for shape in dict.fromkeys(map(sizes, steps)):
            yield line(
                shape,
                *(step_entry(row) for kind in kinds for row in steps if (sizes(row), row["kind"]) == (shape, kind)),
            )
        yield ""
    more = list(others(last))
    if more:
        yield from heading("also", "PyTorch", "bppsa", "")
        yield from more
        yield ""
    yield from provenance(results)


def step_entry(row: Row) -> str:
    return f"**{times(row['ratio']['median'])}** ({quartiles(row['ratio'])}), {number(row['ours_ms'])} ms"


def others(last: dict[str, list[Row]]) -> Iterator[str]:
    for row in last.get("cells", ()):
        yield line(
            f"a training step of `bppsa.cells.{row['cell']}`, {sizes(row)}, for PyTorch in a Python loop",
            *compared(row),
        )
    for row in last.get("inference", ()):
        yield line(f"inference, `nn.{row['kind']}`, {sizes(row)}", *compared(row))
    for row in last.get("overhead", ()):
        if row["T"] == 1:
            what = "a training step" if row["training"] else "inference"
            microseconds = (f"{number(row[side])} us" for side in ("peer_us", "ours_us"))
            yield line(f"{what} of one time step, `nn.{row['kind']}`, {sizes(row)}", *microseconds, ratio("ratio")(row))
    for row in last.get("memory", ()):
        mebibytes = (f"{number(row[side])} MiB" for side in ("peer_MiB", "ours_MiB"))
        yield line(f"peak memory of training, `nn.{row['kind']}`, {sizes(row)}", *mebibytes, f"{row['share']:.0%}")
    for row in last.get("first_call", ()):
        cache = "kernels in the disk cache" if row["cache"] == "warm" else "kernels to be built"
        yield line(f"first call in a process, `nn.{row['kind']}`, {cache}", "", f"{number(row['total_ms'])} ms", "")


def compared(row: Row) -> tuple[str, str, str]:
    return f"{number(row['peer_ms'])} ms", f"{number(row['ours_ms'])} ms", ratio("ratio")(row)


def provenance(results: Results) -> Iterator[str]:
    machine = results["machine"]
    for part in ("steps", *results):
        if part in results and part != "machine":
            run = results[part][-1]
            break
    else:
        return
    dirty = " with changes" if run["dirty"] else ""
    yield (
        f"Medians of {run['repeats']} interleaved runs, in brackets the quartiles; float32 where nothing else is said. "
        f"{machine['cpu']}, {machine['cores']} cores, {machine['capability']}; {run['threads']} threads; "
        f"torch {run['torch']}; {run['compiler']}; revision {run['revision']}{dirty}, {run['date'][:10]}."
    )
    if grids := results.get("never_slower"):
        lost = ", ".join(str(sum(row["lost"] for row in run["rows"])) for run in grids)
        yield f"Over a grid of {len(grids[-1]['rows'])} shapes, PyTorch was faster beyond doubt at {lost} of them (in each of {len(grids)} runs)."


def heading(*columns: str) -> Iterator[str]:
    yield line(*columns)
    yield line("---", *["---:"] * (len(columns) - 1))


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
