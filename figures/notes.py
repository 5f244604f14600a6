"""A stand-in for IRMAS where it is not at hand: synthetic notes, of the same shapes, easier to tell apart than music.

A note fades from its instrument's own pattern of coefficients into noise that is correlated from frame to frame.
"""

from __future__ import annotations

import itertools

import torch

from figures.audio import INSTRUMENTS, Features
from figures.workload import Samples

FADED = 0.3  # of the frames: what is left of a note then is 1/e
MEMORY = 0.9  # of the noise, from a frame to the next


def notes(features: Features, samples: int) -> Samples:
    """[N, F, C], each coefficient of mean 0 and variance 1 over the frames, as MFCC are."""
    rng = torch.Generator().manual_seed(0)
    classes = torch.arange(samples) % len(INSTRUMENTS)
    patterns = torch.randn(len(INSTRUMENTS), features.inputs, generator=rng)
    fading = torch.exp(-torch.arange(features.frames) / (FADED * features.frames))
    noise = torch.randn(samples, features.frames, features.inputs, generator=rng)
    for before, frame in itertools.pairwise(noise.unbind(1)):
        frame.mul_((1 - MEMORY**2) ** 0.5).add_(before, alpha=MEMORY)
    x = patterns[classes][:, None] * fading[:, None] + noise
    return Samples((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True), classes)
