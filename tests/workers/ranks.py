"""Ranks of a process group as processes of a test: what each of them returns, and an end for those that hang."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

# A fork of a process that has imported these and done nothing else starts in milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch.distributed", "torch._dynamo", "bppsa.distributed.steps.ranks", "bppsa.api.compiling"]
)
TICK = 0.1  # seconds
DEPTH = 9  # frames of a thread that hangs, its newest
IDLE = "in _carry", "in select"  # where threads of the transport wait for work
LOST = 600  # seconds after which a rank ends that no test waits for any longer


def run_ranks(
    function: Callable[..., Any], size: int, *args: Any, timeout: float = 60, dies: Collection[int] = ()
) -> list[Any]:
    """What function(rank, *args) returns on each of `size` ranks of a gloo group; None for those of `dies`.

    function: of a module, as its name is what travels; arguments and results travel pickled. Rank 0 is the store's
    host. The test fails where a rank raises, is still there after `timeout` seconds, or ends otherwise than it should:
    all but those that die end on their own, after `destroy_process_group`. No process is left.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks = [_Rank(rank, size, Path(folder), timeout, function, args) for rank in range(size)]
        # Ticks are counted, not seconds, so that a machine that stops everything for a while is no failure.
        for _ in range(int(timeout / TICK)):
            waiting = [rank for rank in ranks if not rank.ended()]
            if not waiting:
                break
            waiting[0].process.join(TICK)
        failures = [rank.failure(rank.rank in dies) for rank in ranks]
        for rank in ranks:
            rank.process.kill()
            rank.process.join()
    if any(failures):
        pytest.fail("\n".join(text for text in failures if text), pytrace=False)
    return [rank.told[1] for rank in ranks]


class _Rank:
    def __init__(self, rank: int, size: int, folder: Path, timeout: float, *work: Any) -> None:
        self.rank, self.trace = rank, folder / f"rank {rank}"
        self.pipe, theirs = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=_body, args=(rank, size, folder, timeout, theirs, *work))
        self.process.daemon = True
        self.process.start()
        theirs.close()
        self.told: tuple[str, Any] = ("died", None)

    def ended(self) -> bool:
        code = self.process.exitcode
        with contextlib.suppress(EOFError):
            while self.pipe.poll(0):
                self.told = pickle.loads(self.pipe.recv_bytes())
        return code is not None

    def failure(self, dies: bool) -> str:
        """Why the test fails; "" where it does not."""
        (how, value), code = self.told, self.process.exitcode
        if how == "raised":
            return f"rank {self.rank} raised\n{value}"
        if code is None:
            return f"rank {self.rank} hangs, and has {how} {value}\n{self.place()}"
        if dies:
            return "" if how == "died" else f"rank {self.rank} should have died, and returned {value}"
        return "" if (how, code) == ("returned", 0) else f"rank {self.rank} {how} with exit code {code}"

    def place(self) -> str:
        """Where its threads are, in few lines: a log that is cut off shall still tell of every rank."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGUSR1)
        time.sleep(1)
        threads = [thread.splitlines() for thread in self.trace.read_text().split("\n\n")]
        busy = [thread for thread in threads if not any(idle in line for line in thread[1:2] for idle in IDLE)]
        return "\n".join(line for thread in busy for line in thread[:DEPTH])


def _body(
    rank: int,
    size: int,
    folder: Path,
    timeout: float,
    pipe: Connection,
    function: Callable[..., Any],
    args: Sequence[Any],
) -> None:
    faulthandler.register(signal.SIGUSR1, file=open(folder / f"rank {rank}", "w"))  # noqa: SIM115, as the handler writes to it
    faulthandler.dump_traceback_later(timeout + LOST, exit=True)
    torch.set_num_threads(1)
    os.environ.update(RANK=f"{rank}", LOCAL_RANK=f"{rank}", WORLD_SIZE=f"{size}", LOCAL_WORLD_SIZE=f"{size}")
    try:
        join(rank, size, folder / "port", timedelta(seconds=timeout + LOST))
        pipe.send_bytes(pickle.dumps(("returned", function(rank, *args))))  # send would share a tensor's memory
        dist.destroy_process_group()
    except BaseException:
        pipe.send_bytes(pickle.dumps(("raised", traceback.format_exc())))
        raise


def join(rank: int, size: int, place: Path, limit: timedelta) -> None:
    """The gloo group of the ranks that know the place of a file, which none of them made before."""
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, True, limit, wait_for_workers=False)
        place.with_suffix(".new").write_text(f"{store.port}")
        place.with_suffix(".new").rename(place)
    else:
        while not place.exists():
            time.sleep(0.01)
        store = dist.TCPStore("127.0.0.1", int(place.read_text()), size, False, limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    dist.barrier()  # or one that dies at once would do so while others still connect
