"""What each rank of a test does, and what it has to show for it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from bppsa import compile, schedule
from bppsa.errors import ScheduleError, WorkerError
from tests.workers import support, zoo

LAYERS = zoo.Layers(
    (("linear", 0), ("tied", 0), ("skip", 1), ("frozen", 0), ("input", 0), ("shared", 0), ("function", 0)), (1, 3), 0
)
CASES = {  # on two ranks, and on four
    "naive": zoo.Case(schedule.naive(), 2, 3),
    "gpipe": zoo.Case(schedule.gpipe(), 2, 3),
    "one_f_one_b": zoo.Case(schedule.one_f_one_b(), 2, 3),
    "zero_bubble": zoo.Case(schedule.zero_bubble(), 2, 3),
    "v_schedule": zoo.Case(schedule.v_schedule(), 4, 3),
    "ddp": zoo.Case(schedule.ddp(), 3, 3),
    "fsdp": zoo.Case(schedule.fsdp(), 3, 3),
    "lpp": zoo.Case(schedule.lpp(1, 2), 5, 3),
    "fslpp": zoo.Case(schedule.fslpp(2, 1), 3, 3),
    "depth_first": zoo.Case(schedule.depth_first(1, 2), 3, 3),
    "breadth_first": zoo.Case(schedule.breadth_first(2, 1), 3, 3),
    "interleaved": zoo.Case(schedule.interleaved(2), 4, 3),
    "wavelet_dp": zoo.Case(schedule.wavelet_dp(), 3, 4),
    "wavelet_mp": zoo.Case(schedule.wavelet_mp(), 2, 2),
    "lpp, 4": zoo.Case(schedule.lpp(2, 2), 5, 3),
    "fslpp, 4": zoo.Case(schedule.fslpp(2, 2), 5, 3),
    "one_f_one_b, 4": zoo.Case(schedule.one_f_one_b(), 4, 5),
}
Job = tuple[Any, ...]  # one of the functions below, and its arguments after the rank


class Seen(NamedTuple):
    """One step as one rank saw it. owned: Parameters that it holds."""

    loss: Tensor
    outputs: Any
    grads: dict[str, Tensor | None]
    of_inputs: list[Tensor]
    owned: set[str]
    peaks: tuple[list[int], list[int]]  # simulated, measured
    receives: tuple[list[int], list[int]]


def all_of(rank: int, jobs: Sequence[Job]) -> list[Any]:
    """One process does many jobs, as it takes seconds to start."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(rank)
    return [tree_map_only(Tensor, torch.Tensor.detach, function(rank, *args)) for function, *args in jobs]


def model_of(layers: zoo.Layers = LAYERS) -> zoo.Drawn:
    with support.float64():
        return zoo.Drawn(layers)


def batch(rows: int) -> tuple[Tensor, dict[str, Any], Tensor]:
    """x, the model's other argument, and a target."""
    generator = torch.Generator().manual_seed(rows)
    x, y = (torch.randn(rows, zoo.WIDTH, dtype=torch.float64, generator=generator) for _ in range(2))
    target = torch.randn(rows, dtype=torch.float64, generator=generator)
    return x.requires_grad_(), {"y": y.requires_grad_(), "power": 1.5}, target


def compiled_for(name: str, model: nn.Module | None = None, **options: Any) -> Any:
    case = CASES[name]
    x, other, _ = batch(5)
    return compile(
        model or model_of(),
        **case.options,
        loss_fn=support.loss_of,
        example_inputs=(x, other),
        **options,
    )


def seen(compiled: Any, rows: int) -> Seen:
    x, other, target = batch(rows)
    loss, outputs = compiled.step(x, other, target, return_outputs=True)
    simulated, measured = compiled.predicted, compiled.measured
    return Seen(
        loss,
        outputs,
        support.gradients(compiled),
        [x.grad, other["y"].grad],
        {name for name, _ in compiled.named_parameters()},
        (simulated.peak_activations, measured.peak_activations),
        (simulated.weight_receives, measured.weight_receives),
    )


def steps(rank: int, case: str) -> list[Seen]:
    """Two, whose gradients add up, the second with fewer rows than stages."""
    compiled = compiled_for(case)
    return [seen(compiled, 7), seen(compiled, 1)]


def bits(rank: int, case: str) -> list[Seen]:
    """The same step by two models."""
    return [seen(compiled_for(case, seed=1), 7) for _ in range(2)]


def told(rank: int) -> list[str]:
    """What is warned about where there are fewer stages than ranks to own them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compile(nn.Linear(3, 3), schedule=schedule.fsdp(), stages=1, microbatches=2, example_inputs=torch.randn(4, 3))
    return [str(one.message) for one in caught]


def local_rows(rank: int, case: str) -> Any:
    """Each rank brings rows of its own: more of them, the higher it is."""
    compiled = compiled_for(case, data="local")
    start, end = [(0, 2), (2, 7)][rank]
    x, other, target = batch(7)
    x, y = (tensor.detach()[start:end].requires_grad_() for tensor in (x, other["y"]))
    loss = compiled.step(x, {**other, "y": y}, target[start:end])
    return loss, support.gradients(compiled), x.grad


def as_module(rank: int, case: str) -> Any:
    """Outputs, gradients of a loss outside, and an evaluation."""
    compiled = compiled_for(case)
    x, other, target = batch(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output = compiled(x, other)
    support.loss_of(output, target).backward()
    with torch.no_grad():
        evaluated = compiled.eval()(x, other)
    return output, support.gradients(compiled), [x.grad, other["y"].grad], evaluated


def clipped(rank: int, case: str) -> tuple[Tensor, dict[str, Tensor | None]]:
    compiled = compiled_for(case)
    seen(compiled, 7)
    return compiled.clip_grad_norm_(0.1), support.gradients(compiled)


def trained(rank: int, case: str) -> tuple[list[Tensor], dict[str, Any]]:
    """Losses of three steps of Adam, and the whole model afterwards."""
    compiled = compiled_for(case)
    optimizer = torch.optim.Adam(compiled.parameters(), 0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(seen(compiled, 7).loss)
        optimizer.step()
    return losses, compiled.full_state_dict()


def through_a_checkpoint(rank: int, saver: str, loader: str, folder: str) -> tuple[Tensor, Tensor]:
    """The loss under one schedule, and under another that begins elsewhere and loads."""
    compiled = compiled_for(saver)
    with torch.no_grad():
        for parameter in compiled.parameters():
            parameter.mul_(1.5)
    dcp.save(compiled.state_dict(), checkpoint_id=folder)
    other = compiled_for(loader)
    state = other.state_dict()
    dcp.load(state, checkpoint_id=folder)
    other.load_state_dict(state)
    return seen(compiled, 7).loss, seen(other, 7).loss


def from_meta(rank: int, case: str) -> Any:
    """Which Parameters have memory, and a step after the whole model's state is loaded."""
    with torch.device("meta"):
        model = zoo.Drawn(LAYERS)
    compiled = compiled_for(case, model)
    allocated = {name for name, p in model.named_parameters() if not p.is_meta}
    drawn = compiled.full_state_dict()
    compiled.load_state_dict(model_of().state_dict())
    return allocated, {name for name, _ in compiled.named_parameters()}, drawn, seen(compiled, 7)


def changed(rank: int, name: str, change: str) -> Seen | str:
    """A step after something has happened to the model, or the error that says that it may not."""
    compiled = compiled_for(name)
    seen(compiled, 7)
    compiled.zero_grad()
    CHANGES[change](compiled)
    try:
        return seen(compiled, 7)
    except (ScheduleError, WorkerError) as error:
        return str(error)


def unfreeze(model: nn.Module) -> None:
    model.requires_grad_(True)


def freeze(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in ("own.0.weight", "own.2.bias", "own.4.weight"))


def load(model: nn.Module) -> None:
    model.load_state_dict({name: torch.cos(value) for name, value in model.state_dict().items()})


def convert(model: nn.Module) -> None:
    model.float()


CHANGES = {"unfreeze": unfreeze, "freeze": freeze, "load": load, "convert": convert}


def normed(rank: int, name: str) -> tuple[Tensor, dict[str, Tensor | None], dict[str, Any]]:
    """Two steps with batch norm."""
    case, (x, _, _) = CASES[name], batch(7)
    compiled = compile(
        norming(),
        **case.options,
        loss_fn=nn.MSELoss(),
        example_inputs=x.detach(),
    )
    for _ in range(2):
        loss = compiled.step(x.detach(), torch.zeros(7, zoo.WIDTH))
    return loss, support.gradients(compiled), compiled.full_state_dict()


def norming() -> nn.Sequential:
    with torch.random.fork_rng(), support.float64():
        torch.manual_seed(4)
        layers = (layer for _ in range(3) for layer in (nn.Linear(zoo.WIDTH, zoo.WIDTH), nn.BatchNorm1d(zoo.WIDTH)))
        return nn.Sequential(*layers)


def noisy(rank: int, name: str) -> tuple[Tensor, dict[str, Tensor | None]]:
    """A step that draws, where each rank has another seed."""
    with support.float64():
        model = dropping()
    case = CASES[name]
    x = torch.ones(6, zoo.WIDTH)
    compiled = compile(
        model,
        **case.options,
        loss_fn=nn.MSELoss(),
        example_inputs=x,
    )
    return compiled.step(x, x), support.gradients(compiled)


def recomputed(rank: int, name: str, asked: Any) -> tuple[Any, Any]:
    """A step that draws and normalises by batches, without recomputation and with; gradients and statistics too."""
    case, x, found = CASES[name], torch.linspace(0, 1, 6 * zoo.WIDTH).view(6, zoo.WIDTH), []
    for recompute in (None, asked):
        compiled = compile(
            nn.Sequential(*norming(), *dropping()),
            **case.options,
            loss_fn=nn.MSELoss(),
            example_inputs=x,
            recompute=recompute,
            seed=2,
        )
        losses = [compiled.step(x, x) for _ in range(2)]
        found.append((losses, support.gradients(compiled), compiled.full_state_dict()))
    return found[0], found[1]


def measured(rank: int, name: str) -> tuple[list[int], Any, str]:
    """The cut that was measured here, a step of it, and the unit of its timeline."""
    with support.float64():
        model = dropping()
    case, x = CASES[name], torch.ones(6, zoo.WIDTH)
    compiled = compile(
        model,
        **case.options,
        loss_fn=nn.MSELoss(),
        example_inputs=x,
        balance="measured",
        speeds=[1, 0.5],
        seed=0,
    )
    loss = compiled.step(x, x)
    return [stage.ops for stage in compiled.stages.stages], loss, compiled.timeline.units.time


def dropping() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layers = (layer for _ in range(4) for layer in (nn.Linear(zoo.WIDTH, zoo.WIDTH), nn.Dropout(0.5)))
        return nn.Sequential(*layers)
