"""What a call costs beside its kernels, seen by making the calls of kernels again and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any
from unittest import mock

import torch
from torch import nn

import bppsa
from bppsa.codegen.cpu.native import NativeKernel
from bppsa.runtime.recurrent.sweep import Sweep
from harness.comparison import Options, Row, strategy
from harness.timing import Step, interleave, milliseconds, ratio, significant
from rows.problems import KINDS, Problem, Shape, inference

Method = tuple[type, str]

GOAL_US = 60
SWEEPS = ((Sweep, "forward"), (Sweep, "backward"))  # buffers, matmuls and kernels; not: module, checks, autograd
KERNELS = ((NativeKernel, "__call__"),)


def cases(options: Options) -> list[tuple[Shape, bool]]:
    kinds = ["GRU"] if options.quick else list(KINDS)
    return [(Shape(kind, T, 1, 20), training) for kind in kinds for training in (False, True) for T in (1, 10)]


def measure(case: tuple[Shape, bool], options: Options) -> list[Row]:
    shape, training = case
    problem = Problem.of(shape, training=training)

    def step(module: nn.Module) -> Step:
        return problem.training(module) if training else inference(problem.output(module))

    fast = bppsa.compile(problem.module)
    fused = step(bppsa.compile(problem.module, strategy="sequential"))
    parts = {"sweeps": replay(fused, SWEEPS), "kernels": replay(fused, KERNELS)}
    sides = {"peer": step(problem.module), "ours": step(fast), "fused": fused, **{k: v for k, v in parts.items() if v}}
    samples = interleave(sides, options.repeats)
    row = shape.row() | {"training": training, "strategy": strategy(fast), "goal_us": GOAL_US}
    row |= {f"{name}_us": significant(1e3 * milliseconds(s)) for name, s in samples.items()}
    if "kernels" in samples:
        row["over_us"] = significant(row["fused_us"] - row["kernels_us"])
    return [row | {"ratio": asdict(ratio(samples["peer"], samples["ours"]))}]


def replay(step: Step, methods: Sequence[Method]) -> Step | None:
    """Those calls of `methods` that `step` makes, with the same arguments, and nothing else; None if it makes none."""
    calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def recording(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append((method, args, kwargs))
            return method(*args, **kwargs)

        return call

    step()  # whatever is only done once
    with ExitStack() as stack:
        for owner, name in methods:
            stack.enter_context(mock.patch.object(owner, name, recording(getattr(owner, name))))
        step()
    if not calls:
        return None

    def again() -> tuple[float]:
        with torch.no_grad():
            start = time.perf_counter()
            for method, args, kwargs in calls:
                method(*args, **kwargs)
            return (time.perf_counter() - start,)

    return again
