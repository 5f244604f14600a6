"""What a training script does on each rank: loss scaling, optimizers of groups, averages of weights, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional as F

from bppsa import compile, schedule, trainer
from bppsa.errors import ArgumentError, WorkerError
from tests.workers import support

SCHEDULES = {"one_f_one_b": schedule.one_f_one_b(), "ddp": schedule.ddp(), "fsdp": schedule.fsdp()}
STEPS = 4


def perceptron() -> nn.Sequential:
    with torch.random.fork_rng(), support.float64():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return (
        torch.randn(7, 4, dtype=torch.float64, generator=generator),
        torch.randint(3, (7,), generator=generator),
    )


def compiled_for(name: str, model: nn.Module, **options: Any) -> nn.Module:
    return compile(
        model,
        schedule=SCHEDULES[name],
        stages=2,
        microbatches=3,
        loss_fn=F.cross_entropy,
        example_inputs=batch(0)[0],
        **options,
    )


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Biases decay not."""
    named = list(model.named_parameters())
    some = [
        {"params": [p for name, p in named if name.endswith(end)], "weight_decay": decay}
        for end, decay in (("weight", 0.1), ("bias", 0.0))
    ]
    return [group for group in some if group["params"]]


def scaled(rank: int, name: str) -> tuple[list[float], list[float], dict[str, Any]]:
    """Losses and scales of steps of which one overflows on the last rank alone, and the weights afterwards."""
    model = compiled_for(name, perceptron())
    optimizer = torch.optim.AdamW(groups(model), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    losses, scales = [], []
    last = list(model.parameters())[-1]
    for step in range(STEPS):
        overflow = step == 1 and rank == 1
        hook = last.register_hook(lambda grad: grad * float("inf")) if overflow else None
        optimizer.zero_grad()
        losses.append(float(trainer(model).step(*batch(step), scaler=scaler)))
        scaler.unscale_(optimizer)
        trainer(model).clip_grad_norm_(0.5)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        scales.append(scaler.get_scale())
        if hook is not None:
            hook.remove()
    return losses, scales, trainer(model).full_state_dict()


def plain(steps: list[int], clip: float | None = 0.5) -> tuple[list[float], dict[str, Any]]:
    """The same by PyTorch alone, which updates the weights in these steps."""
    model = perceptron()
    optimizer = torch.optim.AdamW(groups(model), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, target = batch(step)
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if step in steps:
            optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def scaled_of_all(rank: int, name: str) -> Any:
    torch.set_default_dtype(torch.float64)
    return scaled(rank, name)


def scaled_on_one_rank(rank: int, frozen: int, microbatches: int) -> tuple[int, list[float], dict[str, Tensor]]:
    """How many gradients a rank has, of whose model the first layers are frozen, or which has no micro-batch, and the
    scales and weights of steps of which one overflows on rank 0 or 1."""
    torch.set_default_dtype(torch.float64)
    model = perceptron()
    for layer in model[: 2 * frozen]:
        layer.requires_grad_(False)
    made = schedule.one_f_one_b() if frozen else schedule.ddp()
    compiled = compile(
        model, schedule=made, stages=2, microbatches=microbatches, loss_fn=F.cross_entropy, example_inputs=batch(0)[0]
    )
    x, target = batch(0)
    trainer(compiled).step(x, target)
    optimizers = [torch.optim.AdamW(compiled.parameters(), lr=0.1)] if list(compiled.parameters()) else []
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=2)
    scales = []
    for step in range(STEPS):
        compiled.zero_grad()
        trainer(compiled).step(x * float("inf") if step == 1 else x, target, scaler=scaler)
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        trainer(compiled).clip_grad_norm_(0.5)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    gradients = sum(p.grad is not None for p in compiled.parameters())
    return gradients, scales, trainer(compiled).full_state_dict()


def noisy() -> nn.Sequential:
    with torch.random.fork_rng(), support.float64():
        torch.manual_seed(2)
        return nn.Sequential(
            nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)
        )


class Run:
    """A model with all that trains it, under a schedule."""

    def __init__(self, name: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = compiled_for(name, noisy(), seed=seed)
        self.optimizer = torch.optim.AdamW(groups(self.model), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)

    def train(self, steps: range) -> list[float]:
        losses = []
        for step in steps:
            self.optimizer.zero_grad()
            losses.append(float(trainer(self.model).step(*batch(step))))
            self.optimizer.step()
            self.scheduler.step()
        return losses


def saved(rank: int, name: str, folder: str) -> list[float]:
    """Losses after a checkpoint that was written on the way."""
    torch.set_default_dtype(torch.float64)
    run = Run(name, seed=1)
    run.train(range(2))
    trainer(run.model).save(folder, run.optimizer, scheduler=run.scheduler, epoch=3)
    return run.train(range(2, STEPS))


def resumed(rank: int, name: str, folder: str) -> list[float]:
    """Losses of a run that begins elsewhere and loads it."""
    torch.set_default_dtype(torch.float64)
    run = Run(name, seed=9)
    run.train(range(1))
    found = trainer(run.model).load(folder, run.optimizer, scheduler=run.scheduler)
    assert found is not None
    assert found["epoch"] == 3
    return run.train(range(2, STEPS))


def failing(rank: int, folder: str) -> bool:
    """Whether a save, a load and a hook that fail on one rank are errors on both, and steps work afterwards."""
    torch.set_default_dtype(torch.float64)
    run = Run("ddp", seed=1)
    told = []
    try:
        trainer(run.model).save(folder, place=Path(folder))  # which the first rank writes
    except (ArgumentError, WorkerError) as error:
        told.append("place= is or holds" in str(error))
    trainer(run.model).save(folder, run.optimizer)
    try:
        trainer(run.model).load(folder, run.optimizer, **({"scheduler": run.scheduler} if rank else {}))
    except (ArgumentError, WorkerError) as error:
        told.append("no entry 'scheduler'" in str(error))
    hook = next(run.model.parameters()).register_hook(no_gradient) if rank else None
    try:
        trainer(run.model).step(*batch(0), scaler=GradScaler("cpu"))
    except (ArithmeticError, WorkerError) as error:
        told.append("no gradient today" in str(error))
    if hook is not None:
        hook.remove()
    run.train(range(1))
    return told == [True, True, True]


def no_gradient(grad: Tensor) -> Tensor:
    raise ArithmeticError("no gradient today")


def masked(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target)  # a function of its own: what it counts is read from its graph


def lone_row(rank: int) -> tuple[float, dict[str, Tensor | None]]:
    """A step in which one rank brings a single row."""
    torch.set_default_dtype(torch.float64)
    x, target = batch(0)
    model = compile(
        perceptron(), schedule=schedule.ddp(), stages=2, microbatches=2, loss_fn=masked, example_inputs=x, data="local"
    )
    rows = [slice(0, 6), slice(6, None)][rank]
    loss = trainer(model).step(x[rows], target[rows])
    return float(loss), support.gradients(model)


def unread(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="sum") / int((target.numpy() >= 0).sum())


def untraced(rank: int, data: str) -> str:
    """What a loss is refused by that no rank can try."""
    torch.set_default_dtype(torch.float64)
    x, target = batch(0)
    options: Any = {"schedule": schedule.ddp(), "stages": 2, "microbatches": 2, "example_inputs": x, "data": data}
    rows = slice(rank * 4, rank * 4 + 4) if data == "local" else slice(None)
    weighted = compile(perceptron(), loss_fn=unread, loss_weight=len, **options)
    trainer(weighted).step(x[rows], target[rows])
    try:
        trainer(compile(perceptron(), loss_fn=unread, **options)).step(x[rows], target[rows])
    except (RuntimeError, TypeError) as error:
        return str(error)
    return ""


class Weighted(nn.Module):
    """x: [B, T, 4], labels: [B, T] -> a loss with ignored labels and class weights, and a mean over all rows."""

    def __init__(self, penalty: float) -> None:
        super().__init__()
        self.penalty = penalty
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("classes", torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.b(self.a(x).tanh())
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), weight=self.classes)
        return loss + self.penalty * logits.square().mean() if self.penalty else loss


def labelled() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (7, 3), generator=generator)
    labels[:2], labels[4, 1:] = -100, -100
    return torch.randn(7, 3, 4, dtype=torch.float64, generator=generator), labels


def weighted(penalty: float = 0.0) -> Weighted:
    with torch.random.fork_rng(), support.float64():
        torch.manual_seed(3)
        return Weighted(penalty)


def ignoring(rank: int, name: str, data: str, penalty: float = 0.0) -> tuple[float, dict[str, Tensor | None]]:
    """A step of ranks that bring all rows, or some."""
    torch.set_default_dtype(torch.float64)
    x, labels = labelled()
    model = compile(
        weighted(penalty), schedule=SCHEDULES[name], stages=2, microbatches=3, example_inputs=(x, labels), data=data
    )
    rows = {"global": slice(None), "local": [slice(0, 4), slice(4, None)][rank]}[data]
    loss = trainer(model).step(x[rows], labels[rows])
    return float(loss), support.gradients(model)
