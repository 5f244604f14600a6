"""Machines whose rates are known: what is predicted with until `bppsa.measure` has seen the machine at hand."""

from __future__ import annotations

from bppsa.plan.cost import Machine, Rates

EPYC = Machine(
    name="2 cores of an AMD EPYC with AVX-512, torch 2.13",
    device="cpu",
    source="fitted by benchmarks/fit.py",
    margin=1.02,
    rates={
        "inference": Rates(126, 0.143, 5.81, 0.117),
        "forward": Rates(227, 0.316, 5.14, 0.168),
        "backward": Rates(257, 0.116, 3.32, 0.128),
        "products": Rates(13.5, 0, 7.31, 0.00148),
        "reduce": Rates(614, 0.95, 4.56, 0.135),
        "scan": Rates(318, 340, 66, 13.4),
        "correct": Rates(50, 11, 3500, 0),
        "GRU inference": Rates(32.6, 16.2, 14.6, 0.0221),
        "GRU forward": Rates(85.9, 30.6, 15.5, 0.0332),
        "GRU backward": Rates(97.6, 79.2, 14.3, 0.0539),
        "LSTM inference": Rates(89.2, 2.36, 6.69, 0.0439),
        "LSTM forward": Rates(140, 1.9, 4.89, 0.171),
        "LSTM backward": Rates(244, 2.52, 3.98, 0.151),
        "RNN inference": Rates(26, 7.1, 11, 0.0414),
        "RNN forward": Rates(63.1, 10.1, 12.2, 0.044),
        "RNN backward": Rates(94.7, 27.5, 9.87, 0.12),
        "loop inference": Rates(1.69, 16.4, 9.66, 0.159),
        "loop forward": Rates(2.93, 14.9, 10.3, 0.131),
        "loop backward": Rates(3.37, 32.3, 9.59, 0.163),
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
        "correct": Rates(80, 0.35, 0.02, 0.00025, host=400),
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
