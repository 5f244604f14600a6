"""IRMAS's loader on small WAV files written here, and the stand-in that has its shapes."""

from __future__ import annotations

import importlib.util
import sys
import wave
from pathlib import Path

import numpy
import pytest
import torch

from figures.audio import INSTRUMENTS, SETS, Features, load, mfcc, read, recordings
from figures.figure import QUICK, Options
from figures.gru import samples_of
from figures.notes import notes

RATE = 44_100
SMALL = Features(coefficients=5, window=256, hop=128)
needs_librosa = pytest.mark.skipif(
    importlib.util.find_spec("librosa") is None, reason="MFCC need librosa: the extra `audio`"
)


def tone(hertz: float, seconds: float = 0.1) -> numpy.ndarray:
    """[2, samples]: the right channel is half as loud."""
    t = numpy.arange(int(seconds * RATE)) / RATE
    note = 0.5 * numpy.sin(2 * numpy.pi * hertz * t)
    return numpy.stack([note, note / 2])


def write(path: Path, waveform: numpy.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((len(waveform), 2, RATE, 0, "NONE", ""))
        file.writeframes((waveform.T * 2**15).round().astype("<i2").tobytes())


@pytest.fixture
def irmas(tmp_path: Path) -> Path:
    """Two excerpts of each of two instruments, named as IRMAS names them."""
    for number, instrument in enumerate(("cla", "voi")):
        for excerpt in (1, 2):
            write(tmp_path / instrument / f"[{instrument}][cla]000{excerpt}__1.wav", tone(440 * (1 + number)))
    (tmp_path / "cla" / "notes.txt").write_text("no excerpt")
    return tmp_path


def test_reads_what_was_written(irmas: Path) -> None:
    path, _ = recordings(irmas)[0]
    waveform, rate = read(path)
    assert rate == RATE
    assert waveform.dtype == numpy.float32
    numpy.testing.assert_allclose(waveform, tone(440), atol=2**-15)


def test_an_excerpt_has_its_folders_instrument(irmas: Path) -> None:
    found = recordings(irmas)
    assert [path.parent.name for path, _ in found] == ["cla", "cla", "voi", "voi"]
    assert [INSTRUMENTS[number] for _, number in found] == ["cla", "cla", "voi", "voi"]
    assert len(INSTRUMENTS) == 11


def test_table_3() -> None:
    sizes = {name: (of.frames, of.inputs) for name, of in SETS.items()}
    assert sizes == {"S": (259, 38), "M": (517, 24), "L": (1034, 12)}


@needs_librosa
def test_mfcc_are_normal_over_the_frames(irmas: Path) -> None:
    samples = load(irmas, SMALL, most=10)
    frames = 1 + int(0.1 * RATE) // SMALL.hop
    assert samples.x.shape == (4, frames, SMALL.inputs)
    assert samples.x.dtype == torch.float32
    assert samples.classes.tolist() == [1, 1, 10, 10]
    torch.testing.assert_close(samples.x.mean(1), torch.zeros(4, SMALL.inputs), atol=1e-4, rtol=0)
    torch.testing.assert_close(samples.x.std(1, correction=0), torch.ones(4, SMALL.inputs), atol=1e-3, rtol=0)
    assert not torch.equal(samples.x[0], samples.x[2])


@needs_librosa
def test_takes_as_many_as_asked_of_all_instruments(irmas: Path) -> None:
    assert load(irmas, SMALL, most=2).classes.tolist() == [1, 10]


@needs_librosa
def test_of_an_excerpt_come_the_shapes_of_table_3() -> None:
    for features in SETS.values():
        assert mfcc(tone(440, 3).astype(numpy.float32), RATE, features).shape == (features.frames, features.inputs)


@needs_librosa
def test_silence_is_zero_and_not_nan() -> None:
    assert not mfcc(numpy.zeros((2, 4096), numpy.float32), RATE, SMALL).any()


@needs_librosa
def test_says_which_excerpt_is_of_another_length(irmas: Path) -> None:
    write(irmas / "voi" / "longer.wav", tone(440, 0.2))
    with pytest.raises(SystemExit, match=r"longer.wav: 69 frames, where .* has 35"):
        load(irmas, SMALL, most=10)


def test_says_what_librosa_is_for(irmas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "librosa.feature", None)
    with pytest.raises(SystemExit, match=r"bppsa\[audio\]"):
        load(irmas, SMALL, most=10)


def test_says_what_is_no_irmas(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is no IRMAS-TrainingData: no WAV files in folders cel, cla"):
        recordings(tmp_path)


def test_says_what_is_no_stereo(tmp_path: Path) -> None:
    write(tmp_path / "mono.wav", tone(440)[:1])
    with pytest.raises(SystemExit, match=r"mono.wav: 1 channels of 16 bits"):
        read(tmp_path / "mono.wav")


def test_says_what_is_no_wav(tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("no sound at all")
    with pytest.raises(SystemExit, match=r"text.wav is no WAV file that can be read"):
        read(tmp_path / "text.wav")


@pytest.mark.parametrize("features", SETS.values(), ids=SETS)
def test_the_stand_in_has_the_shapes_and_the_statistics(features: Features) -> None:
    samples = notes(features, 22)
    assert samples.x.shape == (22, features.frames, features.inputs)
    assert samples.classes.bincount().tolist() == [2] * 11
    assert samples.x.mean(1).abs().max() < 1e-5
    assert (samples.x.std(1) - 1).abs().max() < 1e-5


def test_the_stand_in_can_be_learnt() -> None:
    """Its last frames alone name the class: most notes are nearest to the mean of others of their class."""
    samples = notes(SETS["S"], 330)
    ends = samples.x[:, -60:].mean(1)
    means = torch.stack([ends[:165][samples.classes[:165] == c].mean(0) for c in range(11)])
    guessed = torch.cdist(ends[165:], means).argmin(1)
    assert (guessed == samples.classes[165:]).float().mean() > 0.6  # by chance 0.09


def test_without_irmas_a_stand_in_is_used() -> None:
    options = Options(QUICK, 1.0, torch.device("cpu"), ("PyTorch", "sequential"))
    torch.testing.assert_close(samples_of(SETS["S"], 11, options).x, notes(SETS["S"], 11).x)
