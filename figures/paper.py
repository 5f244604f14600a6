"""The paper's own numbers: its tables of a V100 (appendix G). For the two other devices it has pictures."""

from __future__ import annotations

from dataclasses import dataclass

DEVICE = "V100"
RNN_SAMPLES = 32_000
IRMAS_SAMPLES = 6705


@dataclass(frozen=True)
class Epoch:
    """Seconds of an epoch: forward, the baseline's training, BPPSA's, and forward with what BPPSA prepares in it."""

    forward: float
    baseline: float
    bppsa: float
    prepared: float | None = None

    @property
    def baseline_backward(self) -> float:
        return self.baseline - self.forward

    @property
    def bppsa_backward(self) -> float:
        return self.bppsa - (self.prepared or self.forward)

    @property
    def overall_ratio(self) -> float:
        return self.baseline / self.bppsa

    @property
    def backward_ratio(self) -> float:
        return self.baseline_backward / self.bppsa_backward


# Table 4: T, at B = 16.
RNN_BY_STEPS = {
    10: Epoch(1.57, 4.49, 4.24),
    30: Epoch(2.13, 5.5, 4.91),
    100: Epoch(3.82, 8.87, 6.64),
    300: Epoch(8.79, 18.49, 11.71),
    1000: Epoch(25.86, 53.33, 29.29),
    3000: Epoch(75.33, 157.11, 79.48),
    10000: Epoch(250.28, 510.13, 265.02),
    30000: Epoch(748.99, 1557.94, 764.31),
}

# Table 5: B, at T = 1000.
RNN_BY_ROWS = {
    2: Epoch(200.65, 409.33, 227.13),
    4: Epoch(100.55, 209.67, 112.23),
    8: Epoch(51.29, 102.77, 56.37),
    16: Epoch(25.86, 53.33, 29.29),
    32: Epoch(13.62, 29.51, 15.0),
    64: Epoch(7.51, 14.77, 9.27),
    128: Epoch(3.87, 7.96, 5.49),
    256: Epoch(2.13, 4.02, 3.72),
}

# Table 6: set of features, B.
GRU = {
    ("S", 16): Epoch(1.66, 3.71, 2.94, 2.1),
    ("S", 32): Epoch(0.91, 1.9, 1.48, 1.09),
    ("S", 64): Epoch(0.52, 1.0, 0.82, 0.62),
    ("M", 16): Epoch(3.21, 6.19, 4.2, 3.52),
    ("M", 32): Epoch(1.73, 3.3, 2.22, 1.83),
    ("M", 64): Epoch(0.86, 1.82, 1.2, 1.18),
    ("L", 16): Epoch(5.78, 11.43, 6.91, 6.06),
    ("L", 32): Epoch(3.04, 6.09, 3.57, 3.23),
    ("L", 64): Epoch(1.64, 3.19, 2.33, 2.13),
}


@dataclass(frozen=True)
class SparseOperator:
    """A row of table 1, for VGG-11's first operator of its kind on an image of 32 x 32.

    Args:
        expression: of the sparsity, as printed.
        value: of this expression there.
        example: as printed.
        times: as fast as one column at a time by PyTorch's autograd, on a Threadripper 1950X.
    """

    expression: str
    value: float
    example: str
    times: float


TABLE_1 = {
    "conv 3->64": SparseOperator("1 - hf wf / (hi wi)", 1 - 3 * 3 / (32 * 32), "0.99157", 8.3e3),
    "ReLU": SparseOperator("1 - 1 / (c h w)", 1 - 1 / (64 * 32 * 32), "0.99998", 1.2e6),
    "max-pool 2x2": SparseOperator("1 - hf wf / (ci hi wi)", 1 - 2 * 2 / (64 * 32 * 32), "0.99994", 1.5e5),
}
CONV_CSR_MB, CONV_DENSE_MB = 6.5, 768  # section 3.3, of the convolution


@dataclass(frozen=True)
class Training:
    """Of LeNet-5 on CIFAR-10 (section 3.5); iterations: the length of the axis of figure 6, about."""

    rows: int = 256
    iterations: int = 7800
    lr: float = 0.001
    momentum: float = 0.9


LENET = Training()

# Section 5.3. From L0, the chain as it is, to L2: two levels of combinations up, and the same two down.
PRUNED = 0.97
UP_LEVELS = 2


def beside(what: str, paper: str, ours: str) -> dict[str, str]:
    """A number of the paper's, and what it is here."""
    return {"what": what, "paper": paper, "ours": ours}


def baseline_beside(what: str, paper_s: float, ours_s: float) -> dict[str, str]:
    """How long the baseline's backward takes for a step of the recurrence: ours is a newer one, on another device."""
    faster = f"{paper_s / ours_s:.2g}x as fast as the paper's"
    return beside(
        f"baseline's backward a step, {what}", f"{1e6 * paper_s:.3g} us ({DEVICE})", f"{1e6 * ours_s:.3g} us, {faster}"
    )
