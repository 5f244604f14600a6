"""A CUDA device's own clock, what it is, and how many kernels it is asked to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from harness.timing import Step

NAME = "cuda"


def require() -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"no CUDA device: torch {torch.__version__} sees none, and there is nothing to measure")


def mark() -> Any:
    """A point in the stream of what the device does."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds(start: Any, end: Any) -> float:
    """Between two marks that the device has passed."""
    return start.elapsed_time(end) / 1e3


def synchronize() -> None:
    torch.cuda.synchronize()


def training_step(run: Callable[[], Tensor], inputs: Sequence[Tensor], cotangent: Tensor) -> Step:
    """The device's time of forward and of backward, and the wall clock's of both."""

    def step() -> tuple[float, float, float]:
        before = time.perf_counter()
        start = mark()
        y = run()
        middle = mark()
        torch.autograd.grad(y, inputs, cotangent)
        end = mark()
        del y
        synchronize()
        return seconds(start, middle), seconds(middle, end), time.perf_counter() - before

    return step


def launches(run: Callable[[], Any]) -> int:
    """Kernels that a call of `run` launches; copies and fills that are no kernels do not count."""
    synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        run()
        synchronize()
    on_device = [event.name for event in profiled.events() if event.device_type == DeviceType.CUDA]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in on_device)


def hardware() -> dict[str, Any]:
    found = torch.cuda.get_device_properties(0)
    return {
        "gpu": found.name,
        "gpu_memory_GiB": round(found.total_memory / 2**30, 1),
        "multiprocessors": found.multi_processor_count,
        "compute_capability": f"{found.major}.{found.minor}",
    }


def software() -> dict[str, Any]:
    """tf32: whether cuDNN may round a product's float32 operands to 10 bits, as PyTorch lets it by default."""
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = None
    cudnn = torch.backends.cudnn
    return {"cuda": torch.version.cuda, "cudnn": cudnn.version(), "triton": triton, "tf32": cudnn.allow_tf32}
