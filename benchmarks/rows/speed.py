"""How fast training and inference are: modules, cells, and what else a user might run."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

import bppsa
from bppsa import cells
from bppsa.runtime.recurrent.reference import loop
from harness.comparison import Options, Row, compare, strategy
from harness.timing import Step, interleave, milliseconds, ratio, significant
from rows.problems import KINDS, Problem, Shape, difference, inference, training_step

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

SIDE = 1024  # of a large matmul


def step_cases(options: Options) -> list[Shape]:
    if options.quick:
        return [Shape("GRU", 3, 2, 4), Shape("LSTM", 3, 2, 4, "float64")]
    return [Shape(kind, *sizes) for sizes in STEP_GOALS for kind in KINDS]


def steps(shape: Shape, options: Options) -> list[Row]:
    problem = Problem.of(shape)
    fast = bppsa.compile(problem.module)
    row = shape.row() | {"difference": problem.difference(fast), "strategy": strategy(fast)}
    row |= compare(problem.training(problem.module), problem.training(fast), options.repeats)
    matmul_ms = milliseconds(interleave({"matmul": matmul(shape.torch_dtype)}, options.repeats)["matmul"])
    least_ms = matmul_ms * shape.flops / (2 * SIDE**3)  # no step does its products faster, so it bounds every ratio
    goal = STEP_GOALS.get((shape.T, shape.B, shape.H, shape.dtype), {}).get(shape.kind)
    return [row | {"goal": goal, "bound": significant(row["peer_ms"] / least_ms, 3)}]


def matmul(dtype: torch.dtype) -> Step:
    a, b, out = torch.randn(3, SIDE, SIDE, dtype=dtype)

    def step() -> tuple[float]:
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        return (time.perf_counter() - start,)

    return step


# ---- peers: what else a user might run. Only for a small T, because the loop over the Cell takes that long.

PEER_SHAPE = (100, 16, 20)


def peer_cases(options: Options) -> list[Shape]:
    return [Shape("GRU", 3, 2, 4)] if options.quick else [Shape(kind, *PEER_SHAPE) for kind in KINDS]


def peers(shape: Shape, options: Options) -> list[Row]:
    problem = Problem.of(shape)
    modules: dict[str, Callable[..., Any]] = {
        "PyTorch": problem.module,
        "loop over Cell": loop_over_cell(problem.module),
        "ours": bppsa.compile(problem.module),
    }
    if not options.quick:
        modules["torch.compile"] = torch.compile(problem.module)
    samples = interleave({name: problem.training(module) for name, module in modules.items()}, options.repeats)
    ours = samples.pop("ours")
    rows = [{"peer": k, "peer_ms": milliseconds(s), "ratio": asdict(ratio(s, ours))} for k, s in samples.items()]
    return [shape.row() | row | {"ours_ms": milliseconds(ours)} for row in rows]


def loop_over_cell(module: nn.RNNBase) -> Callable[..., tuple[Tensor, Any]]:
    """The same by nn.GRUCell and its like, with the module's own Parameters."""
    kinds = {"GRU": nn.GRUCell, "LSTM": nn.LSTMCell, "RNN_TANH": nn.RNNCell}
    cell = kinds[module.mode](module.input_size, module.hidden_size)
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

CELL_GOALS = {"ResetGRU": 25, "ResetLSTM": 25, "LayerNormLSTM": 25, "MinGRU": None, "IndRNN": None}
CELL_SIZES = (200, 16, 32)  # T, B, H
RESETS = 0.05  # of all steps


def cell_cases(options: Options) -> list[str]:
    return ["ResetGRU"] if options.quick else list(CELL_GOALS)


def own_cells(name: str, options: Options) -> list[Row]:
    T, B, H = (3, 2, 4) if options.quick else CELL_SIZES
    torch.manual_seed(0)
    cell = getattr(cells, name)(H, H)
    x, cotangent = torch.randn(T, B, H, requires_grad=True), torch.randn(T, B, H)
    reset = (torch.rand(T, B) < RESETS,) if name.startswith("Reset") else ()

    def over(scan: Callable[..., Any], cell: Any, x: Tensor) -> Callable[[], Tensor]:
        return lambda: scan(cell, cell.initial(B), (x, *reset) if reset else x)[1]

    # in float64: some of these amplify a rounding error a thousandfold in 200 steps, whoever makes it
    exact, wide = copy.deepcopy(cell).double(), x.detach().double().requires_grad_()
    row = {"cell": name, "T": T, "B": B, "H": H, "goal": CELL_GOALS[name]}
    both = (over(scan, exact, wide) for scan in (loop, bppsa.scan))
    row["difference"] = difference(*both, [wide, *exact.parameters()], cotangent.double())
    step, fast = (training_step(over(scan, cell, x), [x, *cell.parameters()], cotangent) for scan in (loop, bppsa.scan))
    return [row | compare(step, fast, options.repeats)]


# ---- inference


def inference_cases(options: Options) -> list[Shape]:
    return [Shape("GRU", 3, 1, 4)] if options.quick else [Shape(kind, 200, 1, 64) for kind in KINDS]


def inferences(shape: Shape, options: Options) -> list[Row]:
    problem = Problem.of(shape, training=False)
    peer, ours = (inference(problem.output(m)) for m in (problem.module, bppsa.compile(problem.module)))
    return [shape.row() | {"goal": 10 if shape.kind == "GRU" else None} | compare(peer, ours, options.repeats)]
