"""What can be measured within one process. Each part is a list of cases and a function from a case to rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import bppsa
from bppsa import cells
from bppsa.codegen.native import NativeKernel
from bppsa.runtime.reference import loop
from bppsa.runtime.sweep import Sweep
from problems import KINDS, Problem, Shape, difference, inference, training_step
from replay import replay
from timing import Step, interleave, milliseconds, ratio, significant

Row = dict[str, Any]
FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True)
class Options:
    threads: int
    repeats: int
    quick: bool  # the smallest shapes, to see that all of it runs


def compare(peer: Step, ours: Step, repeats: int) -> Row:
    samples = interleave({"peer": peer, "ours": ours}, repeats)
    a, b = samples["peer"], samples["ours"]
    row = {"peer_ms": milliseconds(a), "ours_ms": milliseconds(b), "ratio": asdict(ratio(a, b))}
    if len(a[0]) > 1:
        row |= {"forward": asdict(ratio(a, b, FORWARD)), "backward": asdict(ratio(a, b, BACKWARD))}
    return row


def strategy(fast: nn.Module) -> str:
    """What ran in the last call."""
    return next((decision.strategy for decision in fast.report.decisions), "pytorch")


# ---- steps: nn.GRU, nn.LSTM and nn.RNN, a whole training step

# (T, B, H, dtype): the ratio that is aimed at
STEP_GOALS: dict[tuple[int, int, int, str], dict[str, float]] = {
    (1000, 16, 20, "float32"): {"GRU": 30, "LSTM": 4, "RNN": 12},
    (1000, 16, 64, "float32"): {"GRU": 8, "LSTM": 2.3, "RNN": 4},
    (300, 32, 128, "float32"): {"GRU": 2.5, "LSTM": 1.5, "RNN": 1.7},
    (100, 64, 256, "float32"): {"GRU": 1.35, "LSTM": 1.2, "RNN": 1.2},
    (50, 64, 512, "float32"): {"GRU": 1.15, "LSTM": 1.0, "RNN": 1.0},
    (1000, 1, 128, "float32"): {"GRU": 16, "LSTM": 1.8, "RNN": 10},
    (100, 16, 20, "float64"): {"GRU": 10, "LSTM": 8, "RNN": 8},
}


def step_cases(options: Options) -> list[Shape]:
    if options.quick:
        return [Shape("GRU", 3, 2, 4), Shape("LSTM", 3, 2, 4, "float64")]
    return [Shape(kind, *sizes) for sizes in STEP_GOALS for kind in KINDS]


def steps(shape: Shape, options: Options) -> list[Row]:
    problem = Problem.of(shape)
    fast = bppsa.compile(problem.module)
    row = shape.row() | {"difference": problem.difference(fast), "strategy": strategy(fast)}
    row |= compare(problem.training(problem.module), problem.training(fast), options.repeats)
    least_ms = shape.flops / gemm_flops(shape.dtype) * 1e3
    goal = STEP_GOALS.get((shape.T, shape.B, shape.H, shape.dtype), {}).get(shape.kind)
    return [row | {"goal": goal, "bound": significant(row["peer_ms"] / least_ms, 3)}]


@cache
def gemm_flops(dtype: str) -> float:
    """Operations a second of a large torch.mm: no step does its products faster, so it bounds every ratio."""
    n = 1024
    a, b, out = torch.randn(3, n, n, dtype=getattr(torch, dtype))
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        seconds.append(time.perf_counter() - start)
    return 2 * n**3 / min(seconds)


# ---- peers: what else a user might run. Only for a small T, because the loop over the Cell takes that long.

PEER_SHAPE = (100, 16, 20)


def peer_cases(options: Options) -> list[Shape]:
    return [Shape("GRU", 3, 2, 4)] if options.quick else [Shape(kind, *PEER_SHAPE) for kind in KINDS]


def peers(shape: Shape, options: Options) -> list[Row]:
    problem = Problem.of(shape)
    cell = loop_over_cell(problem.module)
    candidates = {"pytorch": problem.module, "loop over Cell": cell, "torch.compile": torch.compile(problem.module)}
    fast = bppsa.compile(problem.module)
    run = {
        name: problem.training(candidate)
        for name, candidate in candidates.items()
        if not options.quick or name != "torch.compile"
    }
    samples = interleave({**run, "ours": problem.training(fast)}, options.repeats)
    ours = samples.pop("ours")
    row = {"ours_ms": milliseconds(ours)}
    return [
        shape.row() | {"peer": k, "peer_ms": milliseconds(s), "ratio": asdict(ratio(s, ours))} | row
        for k, s in samples.items()
    ]


def loop_over_cell(module: nn.RNNBase) -> Callable[..., tuple[Tensor, Any]]:
    """The same by nn.GRUCell and its like, with the module's own Parameters."""
    cell = {"GRU": nn.GRUCell, "LSTM": nn.LSTMCell, "RNN_TANH": nn.RNNCell}[module.mode](
        module.input_size, module.hidden_size
    )
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        setattr(cell, name, getattr(module, f"{name}_l0"))

    def run(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        carry = tuple(s[0] for s in state) if isinstance(state, tuple) else state[0]
        ys = []
        for x_t in x:
            carry = cell(x_t, carry)
            ys.append(carry[0] if isinstance(carry, tuple) else carry)
        return torch.stack(ys), carry

    return run


# ---- cells: those of bppsa.cells, against a Python loop over the same cell

CELL_GOALS = {cells.ResetGRU: 25, cells.ResetLSTM: 25, cells.LayerNormLSTM: 25, cells.MinGRU: None, cells.IndRNN: None}
CELL_SIZES = (200, 16, 32)  # T, B, H
RESETS = 0.05  # of all steps


def cell_cases(options: Options) -> list[type[cells.Cell]]:
    return [cells.ResetGRU] if options.quick else list(CELL_GOALS)


def own_cells(make: type[cells.Cell], options: Options) -> list[Row]:
    T, B, H = (3, 2, 4) if options.quick else CELL_SIZES
    torch.manual_seed(0)
    cell = make(H, H)
    x, cotangent = torch.randn(T, B, H, requires_grad=True), torch.randn(T, B, H)
    xs = (x, torch.rand(T, B) < RESETS) if make in (cells.ResetGRU, cells.ResetLSTM) else x
    peer, ours = (lambda f=f: f(cell, cell.initial(B), xs)[1] for f in (loop, bppsa.scan))
    inputs = [x, *cell.parameters()]
    row = {"cell": make.__name__, "T": T, "B": B, "H": H, "goal": CELL_GOALS[make]}
    row["difference"] = difference(peer, ours, inputs, cotangent)
    return [row | compare(*(training_step(f, inputs, cotangent) for f in (peer, ours)), options.repeats)]


# ---- inference


def inference_cases(options: Options) -> list[Shape]:
    return [Shape("GRU", 3, 1, 4)] if options.quick else [Shape(kind, 200, 1, 64) for kind in KINDS]


def inferences(shape: Shape, options: Options) -> list[Row]:
    problem = Problem.of(shape, training=False)
    both = (inference(problem.output(module)) for module in (problem.module, bppsa.compile(problem.module)))
    return [shape.row() | {"goal": 10 if shape.kind == "GRU" else None} | compare(*both, options.repeats)]


# ---- overhead: what a call costs beside its kernels

OVERHEAD_GOAL_US = 60
SWEEPS = ((Sweep, "forward"), (Sweep, "backward"))  # buffers, matmuls and kernels; not: module, checks, autograd
KERNELS = ((NativeKernel, "__call__"),)


def overhead_cases(options: Options) -> list[tuple[Shape, bool]]:
    kinds = ["GRU"] if options.quick else list(KINDS)
    return [(Shape(kind, T, 1, 20), training) for kind in kinds for training in (False, True) for T in (1, 10)]


def overhead(case: tuple[Shape, bool], options: Options) -> list[Row]:
    shape, training = case
    problem = Problem.of(shape, training=training)

    def step(module: nn.Module) -> Step:
        return problem.training(module) if training else inference(problem.output(module))

    fast = bppsa.compile(problem.module)
    fused = step(bppsa.compile(problem.module, strategy="sequential"))
    parts = {"sweeps": replay(fused, SWEEPS), "kernels": replay(fused, KERNELS)}
    sides = {"peer": step(problem.module), "ours": step(fast), "fused": fused, **{k: v for k, v in parts.items() if v}}
    samples = interleave(sides, options.repeats)
    row = shape.row() | {"training": training, "strategy": strategy(fast), "goal_us": OVERHEAD_GOAL_US}
    row |= {f"{name}_us": significant(1e3 * milliseconds(s)) for name, s in samples.items()}
    if "kernels" in samples:
        row["over_us"] = significant(row["fused_us"] - row["kernels_us"])
    return [row | {"ratio": asdict(ratio(samples["peer"], samples["ours"]))}]


# ---- never_slower: a grid of shapes, none of which may lose

LEAST_RATIO = 0.97
LONGEST_STEP_S = 1.5  # of PyTorch; longer ones are left out


def grid(options: Options) -> list[tuple[str, int, int]]:
    """Each case is one line of the grid, all T of it."""
    if options.quick:
        return [("RNN", 2, 4)]
    return [(kind, B, H) for kind in KINDS for B in (1, 4, 16, 64) for H in (8, 32, 128, 512)]


def never_slower(line: tuple[str, int, int], options: Options) -> list[Row]:
    kind, B, H = line
    rows: list[Row] = []
    for T in (1, 3) if options.quick else (1, 10, 100, 1000):
        shape = Shape(kind, T, B, H)
        if rows and rows[-1]["peer_ms"] * T / rows[-1]["T"] > 1e3 * LONGEST_STEP_S:
            break
        problem = Problem.of(shape)
        fast = bppsa.compile(problem.module)
        row = shape.row() | compare(problem.training(problem.module), problem.training(fast), options.repeats)
        spread = row["ratio"]
        lost = spread["median"] < LEAST_RATIO - (spread["high"] - spread["low"])
        rows.append(row | {"strategy": strategy(fast), "lost": lost})
    return rows
