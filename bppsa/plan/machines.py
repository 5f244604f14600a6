"""Machines whose rates are known: what is predicted with until `bppsa.measure` has seen the machine at hand."""

from __future__ import annotations

from bppsa.plan.cost import Machine, Rates

# Of training by PyTorch's LSTM all rates but a launch's are 1.4 times the fit's: with the fit's, steps at H = 64 to 256
# were predicted to gain 0.8 to 1.4 times, and benchmarks/results has 1.3 to 2.7.
EPYC = Machine(
    name="2 cores of an AMD EPYC with AVX-512, torch 2.13",
    device="cpu",
    source="fitted by benchmarks/fit.py",
    margin=1.02,
    rates={
        "inference": Rates(21.8, 0.0629, 2.18, 0.0818),
        "forward": Rates(42.8, 0.0604, 1.96, 0.0774),
        "backward": Rates(52.4, 0.041, 0, 0.0796),
        "products": Rates(0, 0, 5.58, 0.00179),
        "reduce": Rates(409, 0.953, 0, 0.201),
        "scan": Rates(188, 182, 0, 7.91),
        "correct": Rates(50, 11, 3500, 0),
        "GRU inference": Rates(18.3, 11, 9.8, 0.0283),
        "GRU forward": Rates(34.1, 20.5, 10.1, 0.0346),
        "GRU backward": Rates(47, 51.3, 8.44, 0.0543),
        "LSTM inference": Rates(61.7, 1.8, 2.75, 0.0646),
        "LSTM forward": Rates(85.5, 2.39, 3.77, 0.0959),
        "LSTM backward": Rates(150, 2.23, 2.18, 0.164),
        "RNN inference": Rates(16, 5.31, 10.3, 0.0502),
        "RNN forward": Rates(24.8, 7.37, 10.2, 0.0609),
        "RNN backward": Rates(46.4, 17.2, 4.28, 0.203),
        "loop inference": Rates(0.634, 16.4, 11.7, 0.0324),
        "loop forward": Rates(0.837, 19.6, 9.9, 0.0812),
        "loop backward": Rates(1.23, 39.1, 7.74, 0.155),
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
