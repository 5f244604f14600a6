"""Workers that are threads need nothing of torch.distributed, which some builds of PyTorch leave out."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os
import torch
import torch._dynamo  # which would look for some of it
import torch.distributed as dist
from torch import nn
dist.is_available = lambda: False
del dist.Work, dist.ProcessGroup, dist.group
del os.register_at_fork
import bppsa
from bppsa.schedule import gpipe
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
compiled = bppsa.compile(model, schedule=gpipe(), stages=2, microbatches=2, loss_fn=nn.MSELoss())
x = torch.randn(6, 4)
loss = compiled.step(x, x)
torch.testing.assert_close(loss, nn.functional.mse_loss(model(x), x).detach())
"""


def test_schedules_on_threads() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
