"""Random numbers of a job: from a generator of its own, seeded by (seed, step, op, micro-batch).

So what a job draws depends on no other job: it is the same under every schedule, number of workers and recomputation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bppsa.common.graph import tensors_in
from bppsa.common.stages import draws
from bppsa.errors import WorkerError
from bppsa.runtime.worker.modes import Harmless

aten = torch.ops.aten


@dataclass(frozen=True)
class Seed:
    """The seed of the jobs of one micro-batch in one step."""

    seed: int
    step: int
    batch: int

    def of(self, op: int) -> int:
        text = f"{self.seed} {self.step} {op} {self.batch}"
        return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "little")


class Drawing(nn.Module):
    """Stands for an op that draws: `run` is what the op calls, a module or a function. op: its number among the
    ops of the whole model."""

    def __init__(self, run: Callable[..., Any], op: int) -> None:
        super().__init__()
        self.run, self.op = run, op

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        seed = seed_here()
        if seed is None:
            return self.run(*args, **kwargs)
        with Seeded(seed.of(self.op)):
            return self.run(*args, **kwargs)


_job = threading.local()


@contextmanager
def drawing_from(seed: Seed | None) -> Iterator[None]:
    """The ops that this thread runs within the block draw from generators of this seed."""
    before, _job.seed = seed_here(), seed
    try:
        yield
    finally:
        _job.seed = before


def seed_here() -> Seed | None:
    """The seed that this thread draws from; None where that is torch's own generator."""
    seed: Seed | None = getattr(_job, "seed", None)
    return seed


class Seeded(Harmless, TorchDispatchMode):
    """Ops within the block draw from one generator a device."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.generators: dict[torch.device, torch.Generator] = {}

    def generator(self, args: Any, kwargs: Mapping[str, Any]) -> torch.Generator:
        tensors = tensors_in((args, kwargs))
        device = tensors[0].device if tensors else torch.device(kwargs.get("device") or "cpu")
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self.generators[device]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if not draws(func, args, kwargs) or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        drawn = WITH_GENERATOR.get(func) or taking_generator(func)
        if drawn is None:
            raise WorkerError(
                f"{func} draws random numbers and takes no generator, so a micro-batch cannot draw its own; "
                f"set its probability to 0, or draw by torch.bernoulli or nn.Dropout"
            )
        return drawn(*args, **kwargs, generator=self.generator(args, kwargs))


def taking_generator(func: Any) -> Any:
    """The op itself where it has an argument `generator`, else its overload that has."""
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func
    packet, name = func.overloadpacket, func._overloadname
    return getattr(packet, "generator" if name == "default" else f"{name}_generator", None)


def native_dropout(x: Tensor, p: float, train: bool | None, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    if not train:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = torch.empty_like(x, dtype=torch.float32).bernoulli_(1 - p, generator=generator).bool()
    return x * kept * (1 / (1 - p) if p < 1 else 0), kept


WITH_GENERATOR: Mapping[Any, Callable[..., Any]] = {  # ops of which no overload takes a generator
    aten.native_dropout.default: native_dropout,
    aten.dropout.default: lambda x, p, train, generator: native_dropout(x, p, train, generator=generator)[0],
    aten.rand_like.default: lambda x, generator, **like: torch.empty_like(x, **like).uniform_(generator=generator),
    aten.randn_like.default: lambda x, generator, **like: torch.empty_like(x, **like).normal_(generator=generator),
}
