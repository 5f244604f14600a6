"""Machines whose rates are known: what is predicted with until `bppsa.measure` has seen the machine at hand."""

from __future__ import annotations

from bppsa.plan.cost import Machine, Rates

EPYC = Machine(
    name="2 cores of an AMD EPYC with AVX-512, torch 2.13",
    device="cpu",
    source="fitted by benchmarks/fit.py",
    margin=1.02,
    rates={
        "inference": Rates(126, 0.165, 6.17, 0.118),
        "forward": Rates(250, 0.296, 5.93, 0.154),
        "backward": Rates(257, 0.151, 2.63, 0.121),
        "products": Rates(16.4, 0, 8.56, 0.01),
        "reduce": Rates(870, 0.957, 38.2, 1.14),
        "scan": Rates(488, 349, 57.9, 3.5),
        "GRU inference": Rates(33.4, 16.7, 13.9, 0.0222),
        "GRU forward": Rates(92.8, 30.2, 14.9, 0.0326),
        "GRU backward": Rates(108, 79, 13.8, 0.0532),
        "LSTM inference": Rates(89.9, 2.39, 6.89, 0.0449),
        "LSTM forward": Rates(143, 1.89, 5.48, 0.154),
        "LSTM backward": Rates(246, 2.61, 4.26, 0.146),
        "RNN inference": Rates(26.3, 7, 11.2, 0.039),
        "RNN forward": Rates(63.4, 10.6, 12.1, 0.0397),
        "RNN backward": Rates(98, 28, 10.5, 0.114),
        "loop inference": Rates(5, 5, 10, 0.1),
        "loop forward": Rates(6, 5, 10, 0.1),
        "loop backward": Rates(12, 10, 10, 0.1),
    },
)

# No device was there: rooflines, and what is published of cuDNN's kernels, in their favour where in doubt. A slot is a
# warp of up to 255 registers, 8 on each of 132 multiprocessors, as `make aot` finds for GRU and LSTM; a step waits for
# a product, barriers and exponentials; memory moves 4 TB/s.
H200 = Machine(
    name="H200",
    device="cuda",
    source="prediction",
    margin=2.0,
    slots=132 * 8,
    rates={
        "inference": Rates(5, 0.6, 0.01, 0.00025, host=200),
        "forward": Rates(5, 0.6, 0.01, 0.00025, host=250),
        "backward": Rates(5, 0.6, 0.01, 0.00025, host=250),
        "products": Rates(4, 0, 0.02, 0.00025, host=20),
        "reduce": Rates(5, 0.6, 0.01, 0.00025, host=60),
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
