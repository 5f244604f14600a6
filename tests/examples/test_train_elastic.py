"""The example that goes on when ranks are lost, as torchrun starts it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "train_elastic.py"
STEPS = 30
QUICK = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=2,read_timeout=20"  # seconds


def losses_in(text: str) -> dict[int, tuple[str, int]]:
    """Of each step, as it ran last, its loss and the number of workers."""
    found = re.findall(r"step (\d+): loss ([0-9.]+), (\d+) workers", text)
    return {int(step): (loss, int(workers)) for step, loss, workers in found}


def test_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    """On threads, in two runs."""
    text = SCRIPT.read_text() * 3
    (tmp_path / "data.txt").write_text(text)

    def run(folder: str, steps: int) -> str:
        command = [sys.executable, str(SCRIPT), "--folder", str(tmp_path / folder), "--save-every", "4"]
        command += ["--data", str(tmp_path / "data.txt"), "--steps", f"{steps}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    whole = losses_in(run("whole", 12))
    first, second = losses_in(run("parts", 6)), losses_in(run("parts", 12))
    assert list(second) == list(range(7, 13))
    assert {**first, **second} == whole


def test_goes_on_with_the_ranks_that_are_left(tmp_path: Path) -> None:
    """Two machines, of which one is lost after a checkpoint."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "data.txt").write_text(SCRIPT.read_text() * 3)
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1"]
    command += ["--max-restarts", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
    command += ["--rdzv-id", "elastic", "--local-addr", "127.0.0.1"]
    script = [str(SCRIPT), "--folder", str(tmp_path / "run"), "--data", str(tmp_path / "data.txt")]
    script += ["--steps", f"{STEPS}", "--save-every", "5", "--pause", "0.3"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (tmp_path / "first.log").open("w") as first, (tmp_path / "second.log").open("w") as second:
        agents = [
            subprocess.Popen(
                [*command, "--rdzv-conf", f"is_host={host},{QUICK}", *script],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
            for log, host in ((first, 1), (second, 0))
        ]
        try:
            wait_for(lambda: any(place.name.isdigit() for place in (tmp_path / "run").glob("*")), 120)
            for pid in (agents[1].pid, *below(agents[1].pid)):
                os.kill(pid, signal.SIGKILL)
            assert agents[0].wait(100) == 0, (tmp_path / "first.log").read_text()[-3000:]
        finally:
            for agent in agents:
                for pid in (*below(agent.pid), agent.pid) if agent.poll() is None else ():
                    os.kill(pid, signal.SIGKILL)
                agent.wait()
    said = "".join((tmp_path / name).read_text() for name in ("first.log", "second.log"))
    found = losses_in(said)
    assert sorted(found) == list(range(1, STEPS + 1))
    assert {workers for _, workers in found.values()} == {1, 2}


def below(pid: int) -> list[int]:
    """The processes that a process has started: torchrun's workers are sessions of their own."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(grandchild for child in children for grandchild in below(child))]


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    for _ in range(int(seconds * 10)):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it has not come to it")
