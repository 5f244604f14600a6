"""README's short table and bars, from what benchmarks/results holds: python benchmarks/summary.py [results.json]"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from harness.tables import number, times

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "amd-epyc-2-cores-avx512.json"
TABLE = re.compile(r"(<!-- summary -->\n).*?(<!-- /summary -->)", re.DOTALL)

# What a reader sees: the part of the results, and what its row has to hold.
ROWS: dict[str, tuple[str, Mapping[str, object]]] = {
    "`nn.GRU`, T=1000, B=16, H=20": ("steps", {"kind": "GRU", "T": 1000, "B": 16, "H": 20}),
    "a Python loop over `nn.GRUCell`, T=200, B=32, H=16": ("loops", {"loop": "Stacked", "T": 200, "H": 16}),
    "`nn.LSTM`, T=1000, B=16, H=64": ("steps", {"kind": "LSTM", "T": 1000, "B": 16, "H": 64}),
    "`nn.LSTM`, T=50, B=64, H=512": ("steps", {"kind": "LSTM", "T": 50, "B": 64, "H": 512}),
    "a cell of your own: `LayerNormLSTM`, T=200, B=16, H=32": ("cells", {"cell": "LayerNormLSTM"}),
    "VGG-11, 97 % of the weights pruned, B=16": (
        "pruned",
        {"network": "vgg11", "scheme": "uniform", "pruned": 0.97, "B": 16, "what": "step", "optimizer": "SGD"},
    ),
}


class Line(NamedTuple):
    label: str
    peer_ms: float
    ours_ms: float
    ratio: float


def lines(results: Mapping[str, Any]) -> Iterator[Line]:
    for label, (part, wanted) in ROWS.items():
        row = next(row for row in results[part][-1]["rows"] if wanted.items() <= row.items())
        yield Line(label, row["peer_ms"], row["ours_ms"], row["ratio"]["median"])


def table(results: Mapping[str, Any]) -> str:
    head = "| one training step of | PyTorch, ms | bppsa, ms | |\n| --- | ---: | ---: | ---: |\n"
    rows = (f"| {n} | {number(a)} | {number(b)} | **{times(ratio)}** |\n" for n, a, b, ratio in lines(results))
    return head + "".join(rows)


def bars(results: Mapping[str, Any], path: Path) -> None:
    """How many times as fast, a bar each."""
    found = list(lines(results))[::-1]
    figure, axes = pyplot.subplots(figsize=(8, 3), layout="constrained")
    drawn = axes.barh([line.label.replace("`", "") for line in found], [line.ratio for line in found], color="#3f51b5")
    axes.bar_label(drawn, [times(line.ratio) for line in found], padding=3)
    axes.axvline(1, color="gray", lw=1)
    axes.set(xlim=(0, 30), xticks=[1, 5, 10, 20, 30], xlabel="times as fast as PyTorch, one training step")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    results = json.loads(Path(*sys.argv[1:2] or [RESULTS]).read_text())
    readme = ROOT / "README.md"
    readme.write_text(TABLE.sub(lambda found: f"{found[1]}{table(results)}{found[2]}", readme.read_text()))
    bars(results, ROOT / "docs" / "pictures" / "ratios.svg")


if __name__ == "__main__":
    main()
