"""Machines whose rates are known: what is predicted with until `bppsa.measure` has seen the machine at hand."""

from __future__ import annotations

from bppsa.plan.cost import Machine, Rates

EPYC = Machine(
    name="2 cores of an AMD EPYC with AVX-512, torch 2.13",
    device="cpu",
    source="fitted by benchmarks/fit.py",
    margin=1.02,
    rates={
        "inference": Rates(134, 0.19, 6.1, 0.13),
        "forward": Rates(246, 0.35, 6.5, 0.15),
        "backward": Rates(250, 0.15, 6.0, 0.12),
        "products": Rates(10, 0, 7.0, 0.05),
        "reduce": Rates(1500, 1.0, 15, 0.5),
        "scan": Rates(100, 300, 20, 0.5),
        "GRU inference": Rates(33, 16.7, 13.9, 0.022),
        "GRU forward": Rates(93, 30, 15, 0.03),
        "GRU backward": Rates(108, 80, 14.3, 0.05),
        "LSTM inference": Rates(90, 2.4, 7, 0.05),
        "LSTM forward": Rates(143, 2, 5.4, 0.16),
        "LSTM backward": Rates(235, 2.8, 3.7, 0.31),
        "RNN inference": Rates(26, 7, 11, 0.04),
        "RNN forward": Rates(63, 10.7, 12, 0.04),
        "RNN backward": Rates(99, 28.5, 12, 0.1),
        "loop inference": Rates(5, 5, 10, 0.1),
        "loop forward": Rates(6, 5, 10, 0.1),
        "loop backward": Rates(12, 10, 10, 0.1),
    },
)

# No device was there: from rooflines and from what is published of cuDNN's kernels, in whose favour where in doubt. A
# slot is a warp of 255 registers, 8 on each of 132 multiprocessors; bandwidth 4 TB/s; TF32 split in three products.
H200 = Machine(
    name="H200",
    device="cuda",
    source="prediction",
    margin=1.5,
    slots=132 * 8,
    rates={
        "inference": Rates(5, 0.9, 0.02, 0.00025, host=200),
        "forward": Rates(5, 0.9, 0.02, 0.00025, host=250),
        "backward": Rates(5, 0.9, 0.02, 0.00025, host=250),
        "products": Rates(4, 0, 0.02, 0.00025, host=20),
        "reduce": Rates(5, 0.9, 0.02, 0.00025, host=60),
        "scan": Rates(4, 0.35, 0.02, 0.00025, host=60),
        "GRU inference": Rates(10, 0.4, 0.02, 0.00025, host=60),
        "GRU forward": Rates(10, 0.4, 0.02, 0.00025, host=60),
        "GRU backward": Rates(20, 0.8, 0.02, 0.00025, host=80),
        "LSTM inference": Rates(10, 0.4, 0.02, 0.00025, host=60),
        "LSTM forward": Rates(10, 0.4, 0.02, 0.00025, host=60),
        "LSTM backward": Rates(20, 0.8, 0.02, 0.00025, host=80),
        "RNN inference": Rates(10, 0.4, 0.02, 0.00025, host=60),
        "RNN forward": Rates(10, 0.4, 0.02, 0.00025, host=60),
        "RNN backward": Rates(20, 0.8, 0.02, 0.00025, host=80),
        "loop inference": Rates(5, 0, 0.02, 0.00025),
        "loop forward": Rates(6, 0, 0.02, 0.00025),
        "loop backward": Rates(12, 0, 0.02, 0.00025),
    },
)

SHIPPED = {machine.device: machine for machine in (EPYC, H200)}
