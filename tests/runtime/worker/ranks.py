"""Processes with a gloo group between them, and what each of them had to say."""

from __future__ import annotations

import faulthandler
import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bppsa.runtime.worker.group import GroupTransport
from bppsa.schedule.messages import Item, Message

# A fork of a process that has imported torch and nothing else starts in milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch.distributed", "bppsa.runtime.worker.group"])
LIMIT = 20.0  # seconds, for all processes together


def message(number: int, source: int, target: int) -> Message:
    return Message(Item("A", number, 0), source, target, number)


def run(size: int, body: Callable[..., Any], *args: Any) -> list[Any]:
    """What body(transport, *args) returns on each of `size` ranks; None where the process was killed.

    Fails where a rank raises or hangs: at the end all have closed their transport, and their processes are gone.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes = [CONTEXT.Pipe(duplex=False) for _ in range(size)]
        processes = [
            CONTEXT.Process(target=_rank, args=(rank, size, Path(folder), pipe[1], body, args), daemon=True)
            for rank, pipe in enumerate(pipes)
        ]
        for process, pipe in zip(processes, pipes, strict=True):
            process.start()
            pipe[1].close()
        end = time.monotonic() + LIMIT
        results = [_result(pipe[0], end) for pipe in pipes]
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
        alive = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
    assert not alive, f"ranks {alive} hang; the others returned {results}"
    raised = [f"rank {rank} {result}" for rank, result in enumerate(results) if isinstance(result, _Raised)]
    assert not raised, "\n".join(raised)
    return results


class _Raised(str):
    pass


def _result(pipe: Connection, end: float) -> Any:
    try:
        return pipe.recv() if pipe.poll(max(0.0, end - time.monotonic())) else "nothing in time"
    except EOFError:
        return None


def _rank(rank: int, size: int, folder: Path, pipe: Connection, body: Callable[..., Any], args: Sequence[Any]) -> None:
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(LIMIT - 5, exit=True)  # where it hangs
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=LIMIT))
    try:
        transport = GroupTransport()
        pipe.send(body(transport, *args))
        transport.close()
        dist.destroy_process_group()
    except BaseException:
        pipe.send(_Raised(traceback.format_exc()))
        raise
