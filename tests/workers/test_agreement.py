"""The checksums by which owners of a weight see that they hold the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bppsa.distributed.steps.agreement import WHOLE_BYTES, check_replicas, checksums, digest
from bppsa.errors import ScheduleError

VALUES = (
    torch.arange(6.0),
    torch.arange(6).bfloat16(),
    torch.arange(6) * (1 + 2j),
    torch.arange(6) % 2 == 0,
    torch.arange(6, dtype=torch.int8).requires_grad_(False),
)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value.dtype))
def test_the_order_of_elements_counts(value: Tensor) -> None:
    there = {"weight": value.roll(1)}
    check_replicas([checksums({"weight": value}), checksums({"weight": value.clone()})])
    with pytest.raises(ScheduleError, match="weight are not the same on worker 0 and 1"):
        check_replicas([checksums({"weight": value}), checksums(there)])


def test_strides_do_not_count() -> None:
    value = torch.randn(3, 4)
    assert checksums({"": value.t()}) == checksums({"": value.t().contiguous()})
    assert checksums({"": value.t()}) != checksums({"": value})


def test_scalars_and_tensors_of_nothing() -> None:
    found = checksums({"one": torch.tensor(1.0), "two": torch.tensor(2.0), "none": torch.zeros(0, 3)})
    assert len(set(found.values())) == 3
    assert checksums({"two": torch.tensor(2.0, requires_grad=True)})["two"] == found["two"]


@pytest.mark.parametrize("elements", [5, WHOLE_BYTES + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.complex64])
def test_a_digest_tells_batches_apart(elements: int, dtype: torch.dtype) -> None:
    value = (torch.randn(elements + 1) * 9).to(torch.uint8).to(dtype)
    batch = value[1:]  # whose words begin where no word of memory does
    other = batch.clone()
    other[-9:-8] += 1
    other[:1] += 1
    found = digest([batch, 2])
    assert found == digest([batch.clone(), 2])
    assert len({found, digest([other, 2]), digest([batch.flip(0), 2]), digest([batch, 3])}) == 4


def test_a_digest_tells_the_last_byte_and_the_shape() -> None:
    bytes_ = torch.zeros(WHOLE_BYTES + 3, dtype=torch.uint8)
    other = bytes_.clone()
    other[-1] = 1
    assert len({digest([bytes_]), digest([other]), digest([bytes_.view(1, -1)])}) == 3
