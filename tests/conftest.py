"""What holds for every test: threads that do not fight over the cores, no deadlines, GPU tests only on a GPU."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.breadth import ALL, long_tail

# Before torch is imported anywhere: parallel test workers share the cores, and so do the processes they start.
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // _workers)))

# Without a GPU Triton kernels are run by its interpreter, which has to be asked for before triton is imported.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The first example of a test may build a kernel, and other processes load the machine, so no limit of time; the same
# examples in every run, so a failure repeats.
settings.register_profile(
    "bppsa",
    deadline=None,
    derandomize=True,
    max_examples=25 if ALL else 10,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("bppsa")


@pytest.hookimpl(tryfirst=True)  # before pytest deselects what is marked as slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in long_tail(item for item in items if isinstance(item, pytest.Function)):
        item.add_marker(pytest.mark.slow)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
