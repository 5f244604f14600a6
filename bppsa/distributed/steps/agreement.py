"""What has to be the same on all ranks, and is compared before it can make numbers wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from bppsa.distributed.steps.member import tensors_of
from bppsa.distributed.steps.plans import StepPlan
from bppsa.distributed.steps.training import Training
from bppsa.errors import ScheduleError
from bppsa.runtime.worker.pipeline import PipelineCall

WHOLE_BYTES = 1 << 16  # of a tensor, compared one by one
SAMPLE = 4096  # words of a larger one; of the others the sum
BATCH = (
    "the batch, of which every rank is to bring all rows, in one order (with a DistributedSampler or another sharded "
    "loader compile with data='local')"
)


def fingerprint(training: Training) -> dict[str, str]:
    """Describes the model as it is cut, and what runs it."""
    plan = training.plan("step", training.settings.microbatches)
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
        "the program of the schedule": plan.digest(),
        **tensors,
    }


def signature(plan: StepPlan, call: PipelineCall, ran_nothing: bool) -> dict[str, str]:
    """Describes one call. ran_nothing: whether the ranks have finished none yet."""
    return {
        "the call": f"{'with' if call.loss is not None else 'without'} a loss, running {', '.join(plan.kinds)}",
        "the arguments": call.signature,
        BATCH: digest(call.brought),
        "microbatches": f"{len(call.arguments)}",
        "return_outputs": f"{call.outputs}",
        "the scale of gradients, by scaler= and share=": f"{call.scale}",
        "the ranks": "have run nothing" if ran_nothing else "have run",
    }


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Each tensor's checksum, by its name."""
    return {name: checksum(tensor) for name, tensor in tensors.items()}


def checksum(tensor: Tensor) -> str:
    return blake2b(bytes_of(tensor).cpu().numpy().data, digest_size=16).hexdigest()


def bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def digest(values: Sequence[Any]) -> str:
    """A hash of tensors and other leaves, taken at the speed of memory, because each step takes one."""
    found = 0
    for value in values:
        if isinstance(value, Tensor):
            found = crc32(f"{list(value.shape)} {value.dtype}".encode(), found)
            found = crc32(excerpt(bytes_of(value)), found)
        else:
            found = crc32(f"{value!r},".encode(), found)
    return f"{found:08x}"


def excerpt(flat: Tensor) -> memoryview:
    """All bytes where they are few; else the sum of their words, some of these from all over, and the last bytes."""
    if len(flat) > WHOLE_BYTES:
        even = flat[: len(flat) // 8 * 8]
        words = (even.clone() if even.storage_offset() % 8 else even).view(torch.int64)
        some = torch.cat([words.sum().view(1), words[:: len(words) // SAMPLE]]).view(torch.uint8)
        flat = torch.cat([some, flat[len(even) :]])
    return flat.cpu().numpy().data


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
