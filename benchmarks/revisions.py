"""Pruned training steps of this checkout beside those of another one, interleaved: what a change has cost.

    git worktree add ../before <revision>
    python benchmarks/revisions.py ../before                 some minutes; nothing else should run

Each checkout has a process of its own, and the two take turns of a few steps. Rows are kept in benchmarks/results/
under "revisions", a file a machine: medians of the turns, and the CPU seconds that a process takes from its start to
the end of its first call, all imports included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
STARTS, TURNS, STEPS = 3, 40, 3
NETWORKS = {"vgg11": 0.97, "resnet18": 0.95, "mobilenet": 0.95}


class Peer:
    """A checkout's process, which waits for its turns."""

    def __init__(self, checkout: Path, network: str) -> None:
        command = [sys.executable, str(HERE / "revisions.py"), "--turns", network]
        env = os.environ | {"PYTHONPATH": os.pathsep.join((str(checkout), str(HERE)))}
        self.process = subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def turn(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


def take_turns(network: str) -> None:
    """In a process of its own: a line comes in, and one with the milliseconds of a step goes out."""
    import torch

    import bppsa
    from rows.networks import prepared, uniform
    from rows.pruned_steps import NETWORKS as MAKERS
    from rows.pruned_steps import training_step

    batch = torch.randn(16, 3, 32, 32)
    model = prepared(MAKERS[network], uniform, NETWORKS[network])
    input()
    fast = bppsa.compile(model)
    fast(batch)
    print(json.dumps({"first_s": time.process_time(), "file": bppsa.__file__}), flush=True)
    step = training_step(fast, batch)
    for _ in range(5):
        step()
    while True:
        input()
        print(json.dumps({"ms": [1e3 * sum(step()) for _ in range(STEPS)]}), flush=True)


def measure(network: str, other: Path) -> dict[str, Any]:
    checkouts = {"before": other, "now": ROOT}
    first: dict[str, list[float]] = {name: [] for name in checkouts}
    peers: dict[str, Peer] = {}
    for start in range(1 + STARTS):
        for name, checkout in checkouts.items():
            if start:
                peers[name].process.kill()
            peers[name] = Peer(checkout, network)
            first[name].append(peers[name].turn()["first_s"])
    samples: dict[str, list[float]] = {name: [] for name in peers}
    for turn in range(TURNS):
        for name, peer in list(peers.items())[:: 1 if turn % 2 else -1]:
            samples[name] += peer.turn()["ms"]
    for peer in peers.values():
        peer.process.kill()
    middle = {name: statistics.median(found) for name, found in samples.items()}
    return {
        "network": network,
        "pruned": NETWORKS[network],
        "B": 16,
        "before_ms": middle["before"],
        "now_ms": middle["now"],
        "ratio": middle["now"] / middle["before"],
        "ratio_of_least": min(samples["now"]) / min(samples["before"]),
        "first_before_s": statistics.median(first["before"][1:]),  # of the first start, kernels may be built
        "first_now_s": statistics.median(first["now"][1:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, help="of the revision to compare with")
    parser.add_argument("--turns", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turns:
        return take_turns(options.turns)
    from harness import machine, store

    revision = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=options.checkout, text=True).strip()
    rows = [{"before": revision, **row} for row in map(partial(measure, other=options.checkout.resolve()), NETWORKS)]
    for row in rows:
        print(json.dumps(row, indent=1))
    hardware = machine.hardware()
    path = HERE / "results" / machine.file_name(hardware)
    results = store.load(path) | {"machine": hardware}
    results["revisions"] = [{"on": machine.software(), "rows": rows}]
    store.save(path, results)
    return None


if __name__ == "__main__":
    main()
