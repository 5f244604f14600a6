"""Diagrams parse back to the timeline they show."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from hypothesis import given

from bppsa.schedule import Timeline, Units, ddp, gpipe, lpp, one_f_one_b, simulate, zero_bubble
from bppsa.schedule.draw import MARGIN, SIGNS, WIDTH, label
from tests.breadth import examples
from tests.schedule.factories import timelines

DDP = """\
   1  2  3  4  5  6  7  8  9  10 11 12
w0 f0 f1 f2 f3 ∇3 ── ∇2 ── ∇1 ── ∇0 ──
w1 f0 f1 f2 f3 ∇3 ── ∇2 ── ∇1 ── ∇0 ──"""
ONE_F_ONE_B = """\
   1    2    3    4    5    6
w0 f0.0 f0.1      ∇0.0      ∇0.1
w1      f1.0 ∇1.0 f1.1 ∇1.1"""


def read_text(drawn: str) -> set[tuple[int, str, int, int]]:
    """(worker, label, first column, columns) of each job of a text with columns of one unit."""
    header, *rows = (line for line in drawn.splitlines() if line.startswith((" ", "w")))  # no legend
    starts = [match.start() for match in re.finditer(r"\d+", header)]
    width = min((b - a for a, b in pairwise(starts)), default=len(max(rows, key=len)))
    jobs = set()
    for row in rows:
        worker = int(row.split()[0][1:].rstrip("'"))
        cells = [row[start : start + width].strip() for start in starts]
        for at, cell in enumerate(cells):
            if cell and set(cell) != {"─"}:
                after = cells[at + 1 :]
                goes_on = next((i for i, c in enumerate(after) if set(c) != {"─"}), len(after))
                jobs.add((worker, cell, at, 1 + goes_on))
    return jobs


@examples(50)
@given(timelines())
def test_text_parses_back(timeline: Timeline) -> None:
    shown = {
        (timeline.worker[job], label(job, batches=True), timeline.start[job], timeline.end[job] - timeline.start[job])
        for job in timeline.jobs
    }
    assert read_text(timeline.text(unit=1, batches=True)) == shown


@given(timelines())
def test_svg_and_trace_parse_back(timeline: Timeline) -> None:
    with TemporaryDirectory() as folder:
        svg, trace = Path(folder, "a.svg"), Path(folder, "a.json")
        timeline.svg(svg)
        timeline.chrome_trace(trace, unit_us=10)
        bars = ElementTree.parse(svg).iterfind(".//{*}rect[@class='job']")
        events = json.loads(trace.read_text())["traceEvents"]
    exact = {job: (timeline.worker[job], timeline.start[job], timeline.end[job]) for job in timeline.jobs}
    drawn = {}
    for bar in bars:
        s, b, d = bar.attrib["data-job"].split()
        numbers = (bar.attrib[f"data-{name}"] for name in ("worker", "start", "end"))
        drawn[int(s), int(b), d] = tuple(map(int, numbers))
        left, width = ((float(bar.attrib[of]) - at) / (WIDTH - MARGIN) for of, at in (("x", MARGIN), ("width", 0)))
        _, start, end = drawn[int(s), int(b), d]
        assert abs(left * timeline.makespan - start) + abs(width * timeline.makespan - (end - start)) < 0.01
    assert drawn == exact
    traced = {}
    for event in events:
        if event["ph"] == "X":
            facts = event["args"]
            job = facts["stage"], facts["micro-batch"], facts["direction"]
            traced[job] = facts["worker"], event["ts"] / 10, (event["ts"] + event["dur"]) / 10
    assert traced == exact
    held = [event for event in events if event["ph"] == "C"]
    assert max(event["args"]["held"] for event in held) == max(timeline.peak_activations)


def test_the_papers_diagram() -> None:
    drawn = simulate(ddp(), S=4, B=8, backward=2).text()
    header, *workers, legend = drawn.splitlines()
    assert [header, *workers[:2]] == DDP.splitlines()
    assert len(workers) == 8
    assert len({line[2:] for line in workers}) == 1
    assert legend == "f forward, ∇ backward, each with its stage; time in jobs, 1 a column"


def test_micro_batches_can_be_named() -> None:
    assert simulate(one_f_one_b(), S=2, B=2).text(batches=True).splitlines()[:-1] == ONE_F_ONE_B.splitlines()


def test_colors_are_one_a_micro_batch() -> None:
    timeline = simulate(gpipe(), S=2, B=3)
    colored = timeline.text(color=True)
    assert len(set(re.findall(r"48;5;(\d+)m", colored))) == 3
    plain = re.sub(r"\x1b\[[\d;]*m", "", colored)
    assert [line.rstrip() for line in plain.splitlines()] == timeline.text().splitlines()


def test_columns_fit_the_times() -> None:
    halves = simulate(gpipe(), S=1, B=1, forward=Fraction(1, 2), backward=1).text()
    assert halves.splitlines()[1] == "w0 f0 ∇0 ──"
    assert halves.endswith("time in jobs, 1/2 a column")
    thirds = simulate(gpipe(), S=1, B=2, forward=3, backward=6).text()
    assert thirds.splitlines()[1] == "w0 f0 f0 ∇0 ── ∇0 ──"
    measured = simulate(gpipe(), S=1, B=2, forward=0.1234, backward=0.3).text()
    assert 99 <= len(measured.splitlines()[1].split()) <= 103


def test_every_direction_has_a_sign() -> None:
    drawn = simulate(zero_bubble(), S=2, B=2).text()
    assert all(f"{sign}0" in drawn for sign in SIGNS.values())


def test_units_are_named_in_text_and_svg(tmp_path: Path) -> None:
    timeline = simulate(gpipe(), S=2, B=2, forward=3, backward=6, units=Units(time="ms", memory="MB"))
    timeline.svg(tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert "time in ms, 3 a column" in timeline.text()
    assert f"makespan {timeline.makespan} ms" in drawn
    assert "MB on a worker" in drawn
    assert "viewBox" in drawn  # a page may make it smaller


def test_a_number_of_groups_that_does_not_divide_is_noted(tmp_path: Path) -> None:
    uneven = simulate(lpp(G=3), S=8, B=8)
    uneven.svg(tmp_path / "a.svg")
    assert "G=3 does not divide S=8: a group has max(1, S // G) = 2 workers" in uneven.note
    assert uneven.note in uneven.text()
    assert uneven.note in (tmp_path / "a.svg").read_text()
    for known in (lpp(G=4), lpp(G=3, R=2)):
        assert simulate(known, S=8, B=8).note == ""
    assert simulate(lpp(G=3), S=8, B=8, W=6).note == ""
