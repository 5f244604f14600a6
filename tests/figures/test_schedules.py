"""The simulated figures say what the papers say, or why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib import pyplot

from figures import drawing, page
from figures.__main__ import measured
from figures.figure import QUICK, Options
from figures.schedules import diagrams, groups, time_chunks, wavelet, waves, zero_bubble
from schedules_waves import STATM

OPTIONS = Options(QUICK, 1.0, torch.device("cpu"), ("PyTorch", "auto"))
MODULES = (diagrams, groups, wavelet, zero_bubble, time_chunks)


def ours(record: dict[str, Any], what: str) -> str:
    return next(row["ours"] for row in record["beside"] if row["what"].startswith(what))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_draws(module: Any, tmp_path: Path) -> None:
    picture = module.FIGURE.draw(module.FIGURE.measure(OPTIONS))
    picture.savefig(tmp_path / "a.png")
    pyplot.close(picture)
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert module.FIGURE.simulated


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="only Linux tells what is resident")
def test_memory_of_waves_is_drawn_as_measured(tmp_path: Path) -> None:
    record = measured(waves.FIGURE, OPTIONS)
    for of in record["ways"].values():
        times, levels = zip(*of["measured_MiB"], strict=True)
        assert list(times) == sorted(times)
        assert max(levels) > 0
        assert of["peaks_measured"] >= 1
        assert max(held for _, held in of["simulated"]) >= 1
    drawing.save(waves.FIGURE.draw(record), record, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_the_page_has_the_diagrams_and_table_1(tmp_path: Path) -> None:
    for name, module in (("schedules", diagrams), ("groups", groups)):
        (tmp_path / f"{name}.json").write_text(json.dumps(measured(module.FIGURE, OPTIONS)))
    page.write(tmp_path, ["schedules", "groups"])
    lines = (tmp_path / "README.md").read_text().splitlines()
    at = lines.index("LPP, G=2:")
    assert lines[at + 2] == "```text"
    assert lines[at + 4].startswith("w0 f0 f0")
    at = lines.index("paper / simulated")
    assert [line.split()[0] for line in lines[at + 2 : at + 7]] == ["DDP", "FSDP", "PP", "LPP", "FSLPP"]


def test_the_diagram_of_ddp_is_the_papers() -> None:
    *rows, legend = diagrams.measure(OPTIONS)["text"]["DDP"].splitlines()
    assert "time in jobs" in legend
    assert rows[0].split() == [str(column) for column in range(1, 13)]
    assert [row.split() for row in rows[1:]] == [
        [f"w{worker}", "f0", "f1", "f2", "f3", "∇3", "──", "∇2", "──", "∇1", "──", "∇0", "──"] for worker in range(8)
    ]


def test_groups_go_from_a_pipeline_to_data_parallelism() -> None:
    record = groups.measure(OPTIONS)
    sweep = record["sweep"]["LPP"]
    assert sweep["latency, in units of f + b"] == [16 + 16 / G - 1 for G in record["groups"]]
    assert sweep["stages whose weights a worker owns"] == record["groups"]
    assert sweep["activations a worker receives"][-1] == 0
    assert record["sweep"]["FSLPP"]["weights a worker receives"][0] == 0
    assert all(point["rho"] <= point["bound"] + 1e-9 for point in record["frontier"])
    assert float(ours(record, "rho of two stages")) > 0.6  # the paper's theorem allows 0.5


def test_tick_tock_fills_the_memory_of_one_wave() -> None:
    record = wavelet.measure(OPTIONS)
    assert ours(record, "peak activations") == "16 and 17"
    shares = [
        int(ours(record, f"mean memory, of one wave's peak: {name}").rstrip("%")) for name in ("gang", "tick-tock")
    ]
    assert shares[0] < 60 < 85 < shares[1]


def test_the_weight_gradient_fills_the_bubble() -> None:
    record = zero_bubble.measure(OPTIONS)
    assert [ours(record, f"{scheme}:") for scheme in zero_bubble.SCHEMES] == ["33", "27", "25.5"]
    for ours_, theirs in zip(record["bubble"]["ZB-H1"], record["bubble"]["1F1B"], strict=True):
        assert ours_ < theirs


def test_a_chain_is_best_for_few_chunks_and_doubling_for_many() -> None:
    record = time_chunks.measure(OPTIONS)
    assert ours(record, "8 workers").startswith("chain")
    assert ours(record, "16 workers").startswith("doubling")
    assert ours(record, "256 workers").startswith("doubling")
