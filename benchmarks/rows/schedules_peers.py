"""What PyTorch has for a network of stages on several ranks: its pipelines, DDP and FSDP, as steps to be timed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.parallel import DistributedDataParallel

Run = Callable[[], object]  # one training step
Peer = Callable[[nn.Sequential, int, Tensor, Tensor, nn.Module], tuple[Run, nn.Module]]


def pipeline(kind: type, placement: Callable[[int, int], int]) -> Peer:
    """placement: the rank of a stage, of the stage and their number."""

    def build(network: nn.Sequential, B: int, x: Tensor, target: Tensor, loss_fn: nn.Module) -> tuple[Run, nn.Module]:
        S, group, rank = len(network), dist.new_group(), dist.get_rank()
        own = [s for s in range(S) if placement(s, S) == rank]
        modules = nn.ModuleDict({str(s): copy.deepcopy(network[s]) for s in own})
        stages = [PipelineStage(modules[str(s)], s, S, torch.device("cpu"), group=group) for s in own]
        several = issubclass(kind, schedules.PipelineScheduleMulti)
        schedule = kind(stages if several else stages[0], B, loss_fn=loss_fn)
        first, last = 0 in own, S - 1 in own

        def run() -> object:
            return schedule.step(*([x] if first else []), **({"target": target, "losses": []} if last else {}))

        return run, modules

    return build


def replicas(wrap: Callable[[nn.Sequential], nn.Module]) -> Peer:
    """Each rank has its share of the rows."""

    def build(network: nn.Sequential, B: int, x: Tensor, target: Tensor, loss_fn: nn.Module) -> tuple[Run, nn.Module]:
        wrapped = wrap(copy.deepcopy(network))
        mine, wanted = (of.tensor_split(dist.get_world_size())[dist.get_rank()] for of in (x, target))

        def run() -> object:
            loss = loss_fn(wrapped(mine), wanted)
            loss.backward()
            return loss

        return run, wrapped

    return build


def sharded(network: nn.Sequential) -> nn.Module:
    for stage in network:
        fully_shard(stage)
    return fully_shard(network)


def looped(s: int, S: int) -> int:
    return s % dist.get_world_size()


def in_a_v(s: int, S: int) -> int:
    return min(s, S - 1 - s)


PEERS: Mapping[str, Peer] = {
    "GPipe": pipeline(schedules.ScheduleGPipe, looped),
    "1F1B": pipeline(schedules.Schedule1F1B, looped),
    "Interleaved1F1B": pipeline(schedules.ScheduleInterleaved1F1B, looped),
    "LoopedBFS": pipeline(schedules.ScheduleLoopedBFS, looped),
    "ZBV": pipeline(schedules.ScheduleZBVZeroBubble, in_a_v),
    "DDP": replicas(DistributedDataParallel),
    "FSDP": replicas(sharded),
}
