"""Machines whose rates are known: what is predicted with until `bppsa.measure` has seen the machine at hand."""

from __future__ import annotations

from bppsa.plan.cost import Machine, Rates

EPYC = Machine(
    name="2 cores of an AMD EPYC with AVX-512, torch 2.13",
    device="cpu",
    source="fitted by benchmarks/fit.py",
    margin=1.02,
    rates={
        "inference": Rates(42, 0.143, 5.81, 0.117),
        "forward": Rates(76, 0.316, 5.14, 0.168),
        "backward": Rates(86, 0.116, 3.32, 0.128),
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

# A slot is a warp of up to 255 registers, 8 on each of 132 multiprocessors, as `make aot` finds for GRU and LSTM. Of a
# loop in Python only what a launch takes was measured.
H200 = Machine(
    name="NVIDIA H200, torch 2.11, cuDNN 9.19, triton 3.6",
    device="cuda",
    source="fitted by benchmarks/fit.py --device cuda",
    margin=1.1,
    slots=132 * 8,
    short=1000,
    rates={
        "inference": Rates(292, 0.697, 0.0148, 0.000237),
        "forward": Rates(315, 0.472, 0.0328, 0.00018),
        "backward": Rates(314, 0.434, 0.0323, 0.000166),
        "products": Rates(67.8, 0, 0.0144, 1.49e-05),
        "reduce": Rates(118, 0, 0.0379, 7.48e-05),
        "scan": Rates(80.4, 0, 0.026, 0.000256),
        "correct": Rates(389, 0.36, 0.02, 0.00025),
        "GRU inference": Rates(0, 0.559, 0.0236, 0.000284),
        "GRU forward": Rates(113, 0.595, 0.0239, 0.000276),
        "GRU backward": Rates(0, 1.27, 0.0214, 0.000263),
        "LSTM inference": Rates(128, 0.482, 0.0239, 0.000289),
        "LSTM forward": Rates(140, 0.538, 0.0253, 0.000313),
        "LSTM backward": Rates(73.8, 0.758, 0.0237, 0.000288),
        "RNN inference": Rates(279, 0.501, 0.0226, 0.000262),
        "RNN forward": Rates(99, 0.52, 0.0221, 0.000257),
        "RNN backward": Rates(254, 0.635, 0.0248, 0.000273),
        "loop inference": Rates(10, 0, 0.02, 0.00025),
        "loop forward": Rates(15, 0, 0.02, 0.00025),
        "loop backward": Rates(30, 0, 0.02, 0.00025),
    },
)

SHIPPED = {machine.device: machine for machine in (EPYC, H200)}
