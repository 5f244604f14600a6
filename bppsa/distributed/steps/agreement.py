"""What has to be the same on all ranks, and is compared before it can make numbers wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from bppsa.distributed.steps.member import tensors_of
from bppsa.distributed.steps.plans import StepPlan
from bppsa.distributed.steps.training import Training
from bppsa.errors import ScheduleError
from bppsa.runtime.worker.pipeline import PipelineCall

WHOLE = 1 << 16  # bytes of a tensor that are compared one by one
SAMPLE = 4096  # words of a larger one; of the others the sum
BATCH = (
    "the batch, of which every rank is to bring all rows, in one order (with a DistributedSampler or another sharded "
    "loader compile with data='local')"
)


def fingerprint(training: Training) -> dict[str, str]:
    """Of the model as it is cut, and of what runs it."""
    plan = training.plan("step", training.settings.microbatches)
    program = [[str(step) for step in lane] for lanes in plan.steps for lane in lanes]
    tensors = {
        name: f"{list(tensor.shape)} {tensor.dtype}, {'trained' if tensor.requires_grad else 'frozen'}, in stage {s}"
        for s, stage in enumerate(training.stages.stages)
        for name, tensor in tensors_of(stage).items()
    }
    return {
        "stages": f"{len(training.stages.stages)}",
        "microbatches": f"{training.settings.microbatches}",
        "data": "local" if training.settings.local else "whole batches",
        "seed": f"{training.seed}",
        "the program of the schedule": blake2b(repr(program).encode(), digest_size=4).hexdigest(),
        **tensors,
    }


def signature(plan: StepPlan, call: PipelineCall, ran_nothing: bool) -> dict[str, str]:
    """Of one call. ran_nothing: whether the ranks have finished none yet."""
    kinds = sorted({action.kind for worker in range(len(plan.steps)) for action in plan.actions(worker)})
    return {
        "the call": f"{'with' if call.loss is not None else 'without'} a loss, running {', '.join(kinds)}",
        "the arguments": call.signature,
        BATCH: digest(call.brought),
        "microbatches": f"{len(call.arguments)}",
        "return_outputs": f"{call.outputs}",
        "the ranks": "have run nothing" if ran_nothing else "have run",
    }


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Of their bytes."""
    return {name: checksum(tensor) for name, tensor in tensors.items()}


def checksum(tensor: Tensor) -> str:
    return blake2b(bytes_of(tensor).cpu().numpy().data, digest_size=16).hexdigest()


def bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def digest(values: Sequence[Any]) -> str:
    """Of tensors and other leaves, at the speed of memory: it is taken in each step."""
    found = blake2b(digest_size=4)
    for value in values:
        found.update(excerpt(bytes_of(value)) if isinstance(value, Tensor) else repr(value).encode())
    return found.hexdigest()


def excerpt(flat: Tensor) -> bytes:
    """Of a tensor's bytes: all of few; of many the sum of their words, and some of these at their places."""
    if len(flat) > WHOLE:
        flat = flat[: len(flat) // 8 * 8]
        words = (flat.clone() if flat.storage_offset() % 8 else flat).view(torch.int64)
        flat = torch.cat([words.sum().view(1), words[:: len(words) // SAMPLE]]).view(torch.uint8)
    return flat.cpu().numpy().tobytes()


def check_replicas(told: Sequence[Mapping[str, str]]) -> None:
    """told: of each rank, the checksums of what it owns. Raises ScheduleError where owners of a weight differ."""
    differing = {}
    for name in sorted({name for of_rank in told for name in of_rank}):
        owners = {rank: of_rank[name] for rank, of_rank in enumerate(told) if name in of_rank}
        if len(set(owners.values())) > 1:
            differing[name] = " and ".join(map(str, owners))
    if differing:
        name, at = next(iter(differing.items()))
        more = f", and those of {len(differing) - 1} more" if len(differing) > 1 else ""
        raise ScheduleError(
            f"the values of {name}{more} are not the same on worker {at}, which all own it; seed the ranks alike, "
            "or load the same state on each"
        )
