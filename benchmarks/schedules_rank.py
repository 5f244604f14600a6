"""One rank of a measurement: `python schedules_rank.py RANK STORE MEASUREMENT ARGUMENTS`; rank 0 prints it as JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import bppsa
from bppsa.schedule import Timeline
from harness.timing import Step, interleave, milliseconds, ratio, significant
from rows.schedules_cases import RANKS, Case, Size, batch, network
from rows.schedules_peers import PEERS

LOSS = nn.MSELoss()


def predictions(case: Case, size: Size, repeats: int) -> dict[str, Any]:
    """Our steps beside what the simulator makes of the times that their jobs took."""
    x, target = batch(case.B, size)
    compiled = scheduled(case, size, x)
    found: list[tuple[Timeline, Timeline]] = []

    def run() -> None:
        compiled.step(x, target)

    def kept() -> tuple[float, ...]:
        seconds = timed(run, compiled)()
        found.append((compiled.measured, compiled.predicted))
        return seconds

    samples = interleave({"ours": kept}, repeats)["ours"]
    measured, simulated = zip(*found[-len(samples) :], strict=True)
    over = [m.makespan / p.makespan for m, p in zip(measured, simulated, strict=True)]
    step_over = [sum(sample) / p.makespan for sample, p in zip(samples, simulated, strict=True)]
    return {
        "W": compiled.timeline.W,
        "job_ms": {d: median_ms(durations(measured[-1], d)) for d in compiled.timeline.jobs.directions},
        "predicted_ms": median_ms([p.makespan for p in simulated]),
        "measured_ms": median_ms([m.makespan for m in measured]),
        "step_ms": milliseconds(samples),
        "over": significant(statistics.median(over)),
        "step_over": significant(statistics.median(step_over)),
        "peaks_simulated": compiled.timeline.peak_activations,
        "peaks_measured": measured[-1].peak_activations,
    }


def peers(case: Case, size: Size, repeats: int) -> dict[str, Any]:
    """Our steps and PyTorch's in turns."""
    assert case.peer is not None
    x, target = batch(case.B, size)
    run, module = PEERS[case.peer](network(case.S, size), case.B, x, target, LOSS)
    compiled = scheduled(case, size, x)
    steps = {"peer": timed(run, module), "ours": timed(lambda: compiled.step(x, target), compiled)}
    samples = interleave(steps, repeats)
    return {
        "peer_ms": milliseconds(samples["peer"]),
        "ours_ms": milliseconds(samples["ours"]),
        "ratio": asdict(ratio(samples["peer"], samples["ours"])),
        "difference": difference(gradients(module), gradients(compiled)),
    }


def scheduled(case: Case, size: Size, x: Tensor) -> Any:
    model = network(case.S, size)
    return bppsa.compile(
        model, schedule=case.recipe, stages=case.S, microbatches=case.B, loss_fn=LOSS, example_inputs=x
    )


def timed(run: Callable[[], object], module: nn.Module) -> Step:
    """From a time at which all ranks are here until the last one has its gradients."""

    def step() -> tuple[float]:
        module.zero_grad()
        dist.barrier()
        start = time.perf_counter()
        run()
        took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        return (took.item(),)

    return step


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Of the weights that are here, by their names in the network."""
    found = {name.removeprefix("module."): p.grad for name, p in module.named_parameters() if p.grad is not None}
    return {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad for name, grad in found.items()}


def difference(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> float:
    """The largest, relative to the largest entry of a gradient."""
    both = [(theirs[name], ours[name]) for name in ours if name in theirs]
    return significant(max(float((a - b).abs().max() / a.abs().max()) for a, b in both), 3)


def durations(timeline: Timeline, direction: str) -> list[float]:
    return [took for job, took in zip(timeline.jobs, timeline.durations, strict=True) if job[2] == direction]


def median_ms(seconds: list[float]) -> float:
    return significant(1e3 * statistics.median(seconds))


MEASUREMENTS: Mapping[str, Callable[..., dict[str, Any]]] = {"predictions": predictions, "peers": peers}


def main(rank: int, store: str, name: str, arguments: Mapping[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    try:
        case, size = Case(**arguments["case"]), Size(**arguments["size"])
        found = MEASUREMENTS[name](case, size, arguments["repeats"])
    finally:
        dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
