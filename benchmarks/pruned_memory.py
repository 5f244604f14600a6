"""Peak memory on pruned networks: masked PyTorch in the memory format that takes less of it, and bppsa.

    python benchmarks/pruned_memory.py              a minute; what else runs does not matter

Each side is a process of its own: how far its memory rises above that of the model once made, within some steps (or
calls, without gradients). Rows are kept in benchmarks/results/ under "pruned_memory". Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import bppsa
from child import CLEAR, STATUS, kilobytes
from harness import machine
from harness.command import RESULTS, Kept
from harness.timing import significant
from pruned import FORMATS
from rows.networks import prepared, uniform
from rows.pruned_steps import NETWORKS, STEPS

RUNS = 5


@dataclass(frozen=True)
class Case:
    network: str
    pruned: float
    B: int
    what: str = "step"


CASES = [
    *(Case("vgg11", 0.97, b) for b in (16, 64)),
    Case("vgg11", 0.9, 64),
    *(Case("vgg11 with batch norm", 0.97, b) for b in (16, 64)),
    *(Case("resnet18", 0.95, b) for b in (16, 64)),
    Case("mobilenet", 0.95, 64),
    *(Case("vgg11", 0.97, b, "inference") for b in (1, 16, 64)),
    *(Case("resnet18", 0.95, b, "inference") for b in (1, 64)),
]
QUICK = Case("vgg11", 0.5, 2)


def rise(case: Case, side: str, width: int | None) -> float:
    """MiB, of this very process."""
    bppsa.compile  # noqa: B018  loads what it needs: an import's memory, not a step's
    options = {} if width is None else {"width": width}
    model = prepared(lambda: NETWORKS[case.network](**options), uniform, case.pruned)
    batch = torch.randn(case.B, 3, 32, 32)
    if side in FORMATS:
        model, batch = model.to(memory_format=FORMATS[side]), batch.to(memory_format=FORMATS[side])
    ctypes.CDLL(None).malloc_trim(0)  # what making it has left behind
    CLEAR.write_text("5")  # the peak restarts here
    before = kilobytes("VmRSS")
    model = bppsa.compile(model) if side == "ours" else model  # a model kept beside it keeps masked weights of its own
    step = STEPS[case.what](model, batch)
    for _ in range(RUNS):
        step()
    return (kilobytes("VmHWM") - before) / 1024


def measure(case: Case, quick: bool, threads: int) -> dict[str, Any]:
    def of(side: str) -> float:
        given = json.dumps(asdict(case) | {"side": side, "quick": quick, "threads": threads})
        command = [sys.executable, __file__, "--child", given]
        return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)

    ours = of("ours")
    peers = {name: of(name) for name in FORMATS}
    form = min(peers, key=peers.__getitem__)
    numbers = {"peer_MiB": peers[form], "ours_MiB": ours, "share": ours / peers[form]}
    return asdict(case) | {"format": form} | {name: significant(value, 3) for name, value in numbers.items()}


def child(given: dict[str, Any]) -> None:
    torch.set_num_threads(given.pop("threads"))
    side, quick = given.pop("side"), given.pop("quick")
    print(rise(Case(**given), side, 8 if quick else None))


def table(rows: list[dict[str, Any]]) -> Table:
    found = Table("network", "pruned", "B", "", "PyTorch MiB", "format", "bppsa MiB", "share")
    for row in rows:
        names = row["network"], f"{row['pruned']:.0%}", str(row["B"]), row["what"]
        found.add_row(*names, f"{row['peer_MiB']:g}", row["format"], f"{row['ours_MiB']:g}", f"{row['share']:.0%}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory of bppsa beside masked PyTorch on pruned networks.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--quick", action="store_true", help="a narrow network; keeps nothing unless --results is given"
    )
    parser.add_argument("--results", type=Path, help="folder (default: benchmarks/results)")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child)
    if not STATUS.exists():
        raise SystemExit("only Linux tells how much memory a process had at most")
    rows = [measure(case, options.quick, options.threads) for case in ([QUICK] if options.quick else CASES)]
    Console(width=150).print(table(rows))
    folder = options.results or (None if options.quick else RESULTS)
    on = {**machine.software(), "threads": options.threads}
    Kept.of(folder).put("pruned_memory", [{"on": on, "rows": rows}])


if __name__ == "__main__":
    main()
