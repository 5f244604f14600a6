"""What the figures train on: bits of equation 8, batches, and how many iterations a budget allows."""

from __future__ import annotations

import torch

from figures.training import side_by_side
from figures.workload import BITSTREAM_CLASSES, bitstream_workload, bitstreams

CPU = torch.device("cpu")


def test_bits_are_as_frequent_as_their_class_says() -> None:
    samples = bitstreams(400, 200)
    assert samples.x.shape == (400, 200, 1)
    assert set(samples.x.unique().tolist()) == {0, 1}
    for c in range(BITSTREAM_CLASSES):
        of_class = samples.x[samples.classes == c].double()
        deviation = (0.25 / of_class.numel()) ** 0.5  # at most
        assert abs(of_class.mean() - (0.05 + 0.1 * c)) < 5 * deviation


def test_an_epoch_takes_every_sample_once() -> None:
    workload = bitstream_workload(12, 5, 4, CPU)
    batches = [batch for batch, _ in zip(workload.batches(), range(6), strict=False)]
    assert workload.iterations_an_epoch == 3
    assert {batch[0].shape for batch in batches} == {(5, 4, 1)}
    assert {batch[0].dtype for batch in batches} == {torch.float32}
    for epoch in (batches[:3], batches[3:]):
        classes = torch.cat([classes for _, classes in epoch])
        assert classes.sort().values.tolist() == workload.samples.classes.sort().values.tolist()
    assert any(not torch.equal(a[0], b[0]) for a, b in zip(batches[:3], batches[3:], strict=True))


def test_a_small_budget_takes_fewer_iterations() -> None:
    """Ways are PyTorch twice: no kernel has to be built."""
    workload = bitstream_workload(12, 5, 4, CPU)
    whole = side_by_side(workload, ("PyTorch", "PyTorch"), 1e-5, iterations=12, seconds=1e9)
    assert (whole["iterations"], whole["lr"]) == (12, 1e-5)
    cut = side_by_side(workload, ("PyTorch", "PyTorch"), 1e-5, iterations=12, seconds=0.0)
    assert (cut["iterations"], cut["lr"]) == (3, 1e-5)
