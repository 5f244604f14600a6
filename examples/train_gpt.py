"""Train GPT-2 on several workers by any schedule, in mixed precision, with checkpoints.

    torchrun --nproc-per-node 2 examples/train_gpt.py --schedule one_f_one_b --stages 2 --bf16
    torchrun --nproc-per-node 2 examples/train_gpt.py --schedule fsdp --folder run --steps 50   # goes on where it was
    python examples/train_gpt.py --compare                                                     # on threads

The model is transformers' own GPT2LMHeadModel with random weights; it reads bytes, those of Python's standard library
unless `--data` names a file or a folder. With `--compare` the same steps are taken by PyTorch alone afterwards, and the
largest difference of the losses is printed; dropout is off then, as each draws its own. At the end the last step is
saved as it was simulated with the times of its jobs and as it was measured, each as an SVG.

Needs transformers, which bppsa itself does not.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import bppsa
from bppsa.errors import BppsaError
from bppsa.schedule.names import ZOO, named
from text import batches, read_text, split

BYTES = 256


def main() -> None:
    options = parse_options()
    under_torchrun = "RANK" in os.environ
    if under_torchrun:
        dist.init_process_group("gloo")
    try:
        run(options, is_first=not under_torchrun or dist.get_rank() == 0)
    finally:
        if under_torchrun:
            dist.destroy_process_group()


def run(options: argparse.Namespace, *, is_first: bool) -> None:
    text, _ = split(read_text(options.data), options.length)
    example = torch.zeros(options.batch, options.length, dtype=torch.long)
    model: Any = bppsa.compile(
        gpt(options),
        schedule=options.recipe,
        stages=options.stages,
        microbatches=options.microbatches,
        recompute=options.recompute,
        example_kwargs={"input_ids": example, "labels": example},
    )
    trainer = bppsa.trainer(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)  # of a rank: those that it owns
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    found = trainer.load(options.folder, optimizer, rates=rates) if options.folder else None
    start, losses = (found["step"], found["losses"]) if found else (0, [])
    for step, batch in enumerate(islice(data(text, options), start, None), start + 1):
        optimizer.zero_grad()
        with precision(options):
            loss = trainer.step(batch)
        trainer.clip_grad_norm_(1.0)
        optimizer.step()
        rates.step()
        losses.append(loss.item())
        if is_first and (step % 10 == 0 or step == options.steps):
            took = trainer.measured.makespan
            print(f"step {step}: loss {losses[-1]:.5f}, {1e3 * took:.0f} ms", flush=True)
        if options.folder and (step % options.save_every == 0 or step == options.steps):
            trainer.save(options.folder, optimizer, rates=rates, step=step, losses=losses)
    if start >= options.steps:
        print(f"{options.folder} holds step {start} already")
        return
    if is_first:
        print(f"makespan {trainer.measured.makespan / trainer.predicted.makespan:.2f} times the simulated one")
        for name, timeline in {"simulated": trainer.predicted, "measured": trainer.measured}.items():
            timeline.svg(f"{options.output}-{name}.svg")
            print(f"saved {options.output}-{name}.svg")
        if options.compare:
            apart = max(abs(a - b) for a, b in zip(losses, alone(text, options), strict=True))
            print(f"beside one process the losses differ by at most {apart:.1e}")


def alone(text: Tensor, options: argparse.Namespace) -> list[float]:
    """The losses of the same steps by PyTorch."""
    model = gpt(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    losses = []
    for batch in data(text, options):
        optimizer.zero_grad()
        with precision(options):
            loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
        losses.append(loss.item())
    return losses


def gpt(options: argparse.Namespace) -> nn.Module:
    torch.manual_seed(options.seed)  # all ranks begin with the same weights
    drop = 0.0 if options.compare else 0.1
    config = GPT2Config(
        vocab_size=BYTES,
        n_positions=options.length,
        n_embd=options.width,
        n_layer=options.layers,
        n_head=4,
        resid_pdrop=drop,
        embd_pdrop=drop,
        attn_pdrop=drop,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def data(text: Tensor, options: argparse.Namespace) -> Iterator[dict[str, Tensor]]:
    """Batches as transformers' collators give them; the model shifts the labels itself. The first bytes of every other
    row are a prompt, whose labels are ignored."""
    for inputs, _ in batches(text, options.length, options.batch, options.steps, options.seed):
        labels = inputs.clone()
        labels[::2, : options.length // 4] = -100
        yield {"input_ids": inputs, "labels": labels}


def precision(options: argparse.Namespace) -> Any:
    return torch.autocast("cpu", torch.bfloat16) if options.bf16 else nullcontext()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train GPT-2 on several workers by a schedule.")
    parser.add_argument("--schedule", default="one_f_one_b", help=f"one of {', '.join(ZOO)}, or such as 'lpp(G=2)'")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--recompute", choices=["full", "selective"], help="what stages compute again")
    parser.add_argument("--folder", type=Path, help="for checkpoints; a run goes on from the newest")
    parser.add_argument("--save-every", type=int, default=20, help="steps")
    parser.add_argument("--compare", action="store_true", help="with the same steps by PyTorch alone")
    parser.add_argument("--data", type=Path, help="a file or a folder of text (default: Python's standard library)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--length", type=int, default=64, help="bytes of a row")
    parser.add_argument("--batch", type=int, default=16, help="rows of a batch")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="gpt", help="what the names of the diagrams begin with")
    options = parser.parse_args()
    try:
        options.recipe = named(options.schedule)
    except BppsaError as error:
        parser.error(str(error))
    return options


if __name__ == "__main__":
    main()
