"""Train a small language model on as many ranks as there are, from the last checkpoint on.

    torchrun --nproc-per-node 2 examples/train_elastic.py --folder run
    torchrun --nnodes 1:2 --nproc-per-node 1 --max-restarts 2 --rdzv-backend c10d --rdzv-endpoint HOST:29400 \
        examples/train_elastic.py --folder run

Started with the second command on two machines that share the folder, it goes on when one of them is lost: what is left
begins again with fewer ranks, loads the newest whole checkpoint, and takes the same steps, because the batches and the
draws of a step depend on its number alone. Without torchrun it runs on threads.

Letters in shapes: B rows of a batch, T bytes of a row.
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import bppsa
from bppsa.schedule import ddp, fsdp, one_f_one_b
from text import batches, loss_of, read_text, split

SCHEDULES = {"one_f_one_b": one_f_one_b, "ddp": ddp, "fsdp": fsdp}


class LanguageModel(nn.Module):
    """Bytes [B, T] -> scores of the next byte [B, T, 256]."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, hidden)
        self.layers = nn.Sequential(
            nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * hidden, hidden)
        )
        self.head = nn.Linear(hidden, 256)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(text)))


def main() -> None:
    options = parse_options()
    under_torchrun = "RANK" in os.environ
    if under_torchrun:
        dist.init_process_group("gloo")
    try:
        run(options, dist.get_rank() if under_torchrun else 0, dist.get_world_size() if under_torchrun else 2)
    finally:
        if under_torchrun:
            dist.destroy_process_group()


def run(options: argparse.Namespace, rank: int, workers: int) -> None:
    training, _ = split(read_text(options.data), options.length)
    torch.manual_seed(options.seed)
    model = bppsa.compile(
        LanguageModel(options.hidden),
        schedule=SCHEDULES[options.schedule](),
        stages=workers,  # 1F1B has one a worker; the others take any number
        microbatches=4,
        workers=workers,
        loss_fn=loss_of,
        example_inputs=torch.zeros(options.batch, options.length, dtype=torch.long),
    )
    trainer = bppsa.trainer(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    found = trainer.load(options.folder, optimizer)
    start = found["step"] if found else 0
    every = batches(training, options.length, options.batch, options.steps, options.seed)
    for step, (inputs, targets) in enumerate(islice(every, start, None), start + 1):
        optimizer.zero_grad()
        loss: Any = trainer.step(inputs, targets)
        trainer.clip_grad_norm_(1.0)
        optimizer.step()
        if rank == 0:
            print(f"step {step}: loss {loss:.6f}, {workers} workers", flush=True)
        if step % options.save_every == 0 or step == options.steps:
            trainer.save(options.folder, optimizer, step=step)
        time.sleep(options.pause)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on as many ranks as there are, from the last checkpoint on.")
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints are; all ranks see it")
    parser.add_argument("--schedule", choices=SCHEDULES, default="one_f_one_b")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=10, help="steps")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps")
    parser.add_argument("--data", type=Path, help="a file or a folder of text (default: Python's standard library)")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--length", type=int, default=32, help="bytes T of a row")
    parser.add_argument("--batch", type=int, default=16, help="rows B of a batch")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
