"""Pruned networks: masked PyTorch in its better memory format, sparseprop if it is installed, and bppsa, interleaved.

    python benchmarks/pruned.py                             everything, some ten minutes; nothing else should run
    python benchmarks/pruned.py --only vgg11,mobilenet      some networks
    python benchmarks/pruned.py --quick                     narrow networks: only shows that all of it runs

A step is forward, loss, backward and the optimizer's; "layer" is forward and backward alone, from a given cotangent to
the input and the weight. sparseprop holds the kept weights alone, so its optimizer steps these and no dense ones. Rows
are kept in benchmarks/results/ under "pruned", a file a machine; a run of some networks leaves the others as they were.
"""

from __future__ import annotations

import argparse
import importlib.util
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import bppsa
from harness import machine
from harness.command import Command, Kept
from harness.timing import interleave, milliseconds, ratio
from rows.networks import globally, in_sparseprop, prepared, uniform
from rows.pruned_steps import NETWORKS, OPTIMIZERS, STEPS, training_step

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
SCHEMES = {"uniform": uniform, "global": globally}


@dataclass(frozen=True)
class Case:
    network: str
    scheme: str
    pruned: float
    B: int
    goal: float | None = None
    what: str = "step"
    optimizer: str = "SGD"


CASES = [
    *(Case("vgg11", "uniform", p, 16, goal) for p, goal in ((0.9, 5.5), (0.97, 13), (0.99, 24))),
    *(Case("vgg11", "uniform", p, 64, goal) for p, goal in ((0.9, 4.7), (0.97, 11), (0.99, 20))),
    Case("vgg11", "global", 0.97, 16, 6),
    *(Case("vgg11", "uniform", 0.97, 16, optimizer=name) for name in OPTIMIZERS if name != "SGD"),
    *(Case("vgg11 with batch norm", "uniform", p, 16) for p in (0.9, 0.97, 0.99)),
    Case("resnet18", "uniform", 0.95, 16, 5),
    Case("mobilenet", "uniform", 0.95, 16),
    *(Case("linear 1024x1024", "uniform", 0.97, b, 12, "layer") for b in (16, 64, 256)),
    *(Case("linear 1024x1024", "uniform", 0.97, b) for b in (16, 64)),
    *(Case("vgg11", "uniform", p, 16, goal, "inference") for p, goal in ((0.9, 5.5), (0.97, 13), (0.99, 24))),
    Case("vgg11", "uniform", 0.97, 64, 11, "inference"),
    Case("vgg11", "uniform", 0.97, 1, what="inference"),
    Case("vgg11", "uniform", 0.5, 16),
]


def measure(case: Case, repeats: int, width: int | None) -> dict[str, Any]:
    make = partial(NETWORKS[case.network], width=width) if width else NETWORKS[case.network]
    models = {
        name: prepared(make, SCHEMES[case.scheme], case.pruned).to(memory_format=f) for name, f in FORMATS.items()
    }
    fast = bppsa.compile(prepared(make, SCHEMES[case.scheme], case.pruned))
    batch = torch.randn(case.B, fast[0].in_features) if case.network[:6] == "linear" else torch.randn(case.B, 3, 32, 32)
    make_step = STEPS[case.what]
    if case.what == "step":
        make_step = partial(training_step, optimizer=OPTIMIZERS[case.optimizer])
    steps = {
        name: make_step(m, batch.to(memory_format=FORMATS[name]) if batch.dim() == 4 else batch)
        for name, m in models.items()
    }
    if width is None and case.what == "step" and "vgg11" in case.network and importlib.util.find_spec("sparseprop"):
        model = in_sparseprop(prepared(make, SCHEMES[case.scheme], case.pruned), batch)
        steps["sparseprop"] = make_step(model, batch)
    samples = interleave({**steps, "ours": make_step(fast, batch)}, repeats)
    ours, sparseprop = samples.pop("ours"), samples.pop("sparseprop", None)
    better = min(samples, key=lambda name: milliseconds(samples[name]))
    return {
        **asdict(case),
        "format": better,
        "peer_ms": milliseconds(samples[better]),
        "ours_ms": milliseconds(ours),
        "ratio": asdict(ratio(samples[better], ours)),
        "sparseprop_ms": sparseprop and milliseconds(sparseprop),
        "sparseprop_ratio": sparseprop and asdict(ratio(sparseprop, ours)),
        "ran": sorted({decision.strategy for decision in fast.report.decisions}),
    }


def table(rows: list[dict[str, Any]]) -> Table:
    found = Table(
        "network",
        "pruned",
        "B",
        "",
        "PyTorch ms",
        "format",
        "bppsa ms",
        "ratio",
        "quartiles",
        "goal",
        "sparseprop",
        "ran",
    )
    for row in rows:
        spread, goal = row["ratio"], row["goal"]
        found.add_row(
            *(row["network"], f"{row['pruned']:.0%} {row['scheme']}", str(row["B"])),
            *(
                f"{row['what']}, {row['optimizer']}" if row["what"] == "step" else row["what"],
                f"{row['peer_ms']:.3g}",
                row["format"],
                f"{row['ours_ms']:.3g}",
            ),
            *(f"{spread['median']:.3g}x", f"{spread['low']:.3g}-{spread['high']:.3g}"),
            *(f"{goal:g}x" if goal else "", beside_sparseprop(row), ", ".join(row["ran"])),
        )
    return found


def beside_sparseprop(row: dict[str, Any]) -> str:
    if row["sparseprop_ms"] is None:
        return ""
    return f"{row['sparseprop_ms']:.3g} ms, {row['sparseprop_ratio']['median']:.3g}x"


def networks(text: str) -> list[str]:
    unknown = set(text.split(",")) - set(NETWORKS)
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: the networks are {', '.join(NETWORKS)}")
    return text.split(",")


def main() -> None:
    command = Command("bppsa beside masked PyTorch on pruned networks.", (9, 2), 2)
    command.add_argument(
        "--only", type=networks, default=list(NETWORKS), help=f"networks, with commas: {', '.join(NETWORKS)}"
    )
    arguments = command.given()
    torch.set_num_threads(arguments.threads)
    machine.require_onednn()
    cases = [case for case in CASES if case.network in arguments.only]
    rows = []
    for case in cases:
        torch.manual_seed(0)
        rows.append(measure(case, arguments.repeats, 8 if arguments.quick else None))
    console = Console(width=150)
    console.print(table(rows))
    if not importlib.util.find_spec("sparseprop"):
        console.print("sparseprop is not installed (pip install --no-build-isolation sparseprop)")
    kept, measured = Kept.of(arguments.results), {case.network for case in cases}
    before = [run for run in kept.results.get("pruned", []) if not measured & {row["network"] for row in run["rows"]}]
    on = {**machine.software(), "threads": arguments.threads, "repeats": arguments.repeats}
    kept.put("pruned", [*before, {"on": on, "rows": rows}])


if __name__ == "__main__":
    main()
