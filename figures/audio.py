"""IRMAS, the audio of section 4.2: WAV files in a folder for each instrument, read as MFCC; needs the extra `audio`.

The training set is at https://www.upf.edu/web/mtg/irmas: 6705 excerpts of 3 s, 16 bits, stereo, 44.1 kHz, under
IRMAS-TrainingData/cel, .../cla and so on.
"""

from __future__ import annotations

import wave
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from numpy.typing import NDArray

from figures.workload import Samples

INSTRUMENTS = ("cel", "cla", "flu", "gac", "gel", "org", "pia", "sax", "tru", "vio", "voi")  # a folder each
CHANNELS, BYTES = 2, 2
EXCERPT = 3 * 44_100  # samples of a channel

Waveform = NDArray[numpy.float32]  # [channels, samples] in -1..1


@dataclass(frozen=True)
class Features:
    """A row of Table 3."""

    coefficients: int
    window: int  # of the Fourier transform
    hop: int  # from a frame to the next

    @property
    def frames(self) -> int:
        """F, of an excerpt."""
        return 1 + EXCERPT // self.hop

    @property
    def inputs(self) -> int:
        """C: of both channels, each without the first coefficient, which is the power of the signal."""
        return CHANNELS * (self.coefficients - 1)


SETS = {"S": Features(20, 4096, 512), "M": Features(13, 2048, 256), "L": Features(7, 1024, 128)}


def load(folder: Path, features: Features, most: int) -> Samples:
    """MFCC and instruments of at most so many excerpts, of all instruments alike."""
    found = recordings(folder)
    chosen = found[:: -(-len(found) // most)]
    x = []
    for path, _ in chosen:
        x.append(mfcc(*read(path), features))
        if x[-1].shape != x[0].shape:
            raise SystemExit(f"{path}: {len(x[-1])} frames, where {chosen[0][0].name} has {len(x[0])}")
    return Samples(torch.from_numpy(numpy.stack(x)), torch.tensor([instrument for _, instrument in chosen]))


def recordings(folder: Path) -> list[tuple[Path, int]]:
    """The files and the number of each one's instrument, sorted by instrument and name."""
    found = [
        (path, number)
        for number, instrument in enumerate(INSTRUMENTS)
        for path in sorted((folder / instrument).glob("*.wav"))
    ]
    if not found:
        raise SystemExit(f"{folder} is no IRMAS-TrainingData: no WAV files in folders {', '.join(INSTRUMENTS)}")
    return found


def read(path: Path) -> tuple[Waveform, int]:
    """A waveform and its samples a second."""
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, frames = file.getparams()[:4]
            data = file.readframes(frames)
    except (wave.Error, EOFError) as failure:
        raise SystemExit(f"{path} is no WAV file that can be read: {failure}") from failure
    if (channels, width) != (CHANNELS, BYTES):
        raise SystemExit(f"{path}: {channels} channels of {8 * width} bits, where IRMAS has 2 of 16")
    samples = numpy.frombuffer(data, dtype="<i2").reshape(-1, CHANNELS)
    return numpy.ascontiguousarray(samples.T / numpy.float32(2**15), dtype=numpy.float32), rate


def mfcc(waveform: Waveform, rate: int, features: Features) -> NDArray[numpy.float32]:
    """[F, C], each coefficient of mean 0 and variance 1 over the frames."""
    try:
        from librosa.feature import mfcc as coefficients
    except ImportError as failure:
        raise SystemExit('MFCC needs librosa: pip install "bppsa[audio]"') from failure
    found = coefficients(
        y=waveform, sr=rate, n_mfcc=features.coefficients, n_fft=features.window, hop_length=features.hop
    )  # [channels, coefficients, F]
    kept = found[:, 1:].reshape(-1, found.shape[-1]).T
    spread = kept.std(0)
    normal = (kept - kept.mean(0)) / numpy.where(spread > 0, spread, 1)  # of a silent excerpt all are constant
    return normal.astype(numpy.float32)
