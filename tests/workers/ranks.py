"""Ranks of a process group as processes of a test: what each of them returns, and an end for those that hang."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import socket
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
CONTEXT.set_forkserver_preload(["torch.distributed", "bppsa._workers.start", "bppsa._api"])


def run_ranks(
    function: Callable[..., Any], size: int, *args: Any, timeout: float = 60, dies: Collection[int] = ()
) -> list[Any]:
    """What function(rank, *args) returns on each of `size` ranks of a gloo group; None for those of `dies`.

    function: of a module, as its name is what travels; arguments and results travel pickled. Rank 0 is the store's
    host. The test fails where a rank raises, is still there after `timeout` seconds, or ends otherwise than it should:
    all but those that die end on their own, after `destroy_process_group`. No process is left.
    """
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as store:
        ranks = [_Rank(rank, size, store, Path(folder), timeout, function, args) for rank in range(size)]
        end = time.monotonic() + timeout + 5
        results = [rank.result(end) for rank in ranks]
        failures = [rank.failure(end, rank.rank in dies) for rank in ranks]
        for rank in ranks:
            rank.process.kill()
            rank.process.join()
    if any(failures):
        pytest.fail("\n".join(text for text in failures if text), pytrace=False)
    return results


class _Rank:
    def __init__(self, rank: int, size: int, store: socket.socket, folder: Path, timeout: float, *work: Any) -> None:
        self.rank, self.trace = rank, folder / f"{rank}"
        self.pipe, theirs = CONTEXT.Pipe(duplex=False)
        place = (rank, size, store.getsockname()[1], store if rank == 0 else None)
        self.process = CONTEXT.Process(target=_body, args=(*place, str(self.trace), timeout, theirs, *work))
        self.process.daemon = True
        self.process.start()
        theirs.close()
        self.told: tuple[str, Any] = ("died", None)

    def result(self, end: float) -> Any:
        if self.pipe.poll(max(0.0, end - time.monotonic())):
            with contextlib.suppress(EOFError):
                self.told = self.pipe.recv()
        return self.told[1]

    def failure(self, end: float, dies: bool) -> str:
        """Why the test fails; "" where it does not."""
        self.process.join(max(0.0, end - time.monotonic()))
        how, value = self.told
        code = self.process.exitcode
        trace = self.trace.read_text() if self.trace.exists() else ""
        if how == "raised":
            return f"rank {self.rank} raised\n{value}"
        if code is None or trace:
            return f"rank {self.rank} {how}, and was in time not at its end: {trace}"
        if dies:
            return "" if how == "died" else f"rank {self.rank} should have died, and returned {value}"
        return "" if (how, code) == ("returned", 0) else f"rank {self.rank} {how} with exit code {code}"


def _body(
    rank: int,
    size: int,
    port: int,
    listener: socket.socket | None,
    trace: str,
    timeout: float,
    pipe: Connection,
    function: Callable[..., Any],
    args: Sequence[Any],
) -> None:
    file = open(trace, "w")  # noqa: SIM115, as it is written to where the process hangs
    faulthandler.dump_traceback_later(timeout, exit=True, file=file)
    torch.set_num_threads(1)
    os.environ.update(RANK=f"{rank}", LOCAL_RANK=f"{rank}", WORLD_SIZE=f"{size}", LOCAL_WORLD_SIZE=f"{size}")
    try:
        _join(rank, size, port, listener, timedelta(seconds=timeout))
        pipe.send(("returned", function(rank, *args)))
        dist.destroy_process_group()
    except BaseException:
        pipe.send(("raised", traceback.format_exc()))
        raise


def _join(rank: int, size: int, port: int, listener: socket.socket | None, limit: timedelta) -> None:
    hosted = {} if listener is None else {"master_listen_fd": listener.detach()}
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0, limit, wait_for_workers=False, **hosted)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    dist.barrier()  # or one that dies at once would do so while others still connect
