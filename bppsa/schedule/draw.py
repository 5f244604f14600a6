"""Timelines as diagrams: text for a terminal, SVG for a page, and a trace for chrome://tracing or Perfetto."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

from bppsa.schedule.job_graph.spec import B, F, Job, W

if TYPE_CHECKING:
    from bppsa.schedule.timeline import Timeline
from bppsa.schedule.units import shown

SIGNS = {F: "f", B: "∇", W: "w"}  # as in Unifying Parallelization Schemes; other directions have their own names
MEANING = {F: "forward", B: "backward", W: "gradient of the weights"}
RUN_AGAIN = "forward again and backward"
GOES_ON = "─"
MOST_COLUMNS = 240  # of text whose unit of time nobody chose
PALETTE = (110, 180, 216, 151, 182, 223, 146, 229)  # of 256 terminal colours, one a micro-batch

MARGIN, WIDTH, LANE, HEADER, FOOTER = 48, 900, 26, 24, 28  # px of an SVG
LIGHTNESS = {F: 80, B: 64, W: 72}


def text(timeline: Timeline, unit: Any = None, *, batches: bool = False, color: bool = False) -> str:
    """Return a row for each worker (for each of its lanes) and a column for each `unit` of time, numbered from 1.

    A job is its sign and stage, such as f0 or ∇3, in the column in which it starts, and ─ in those in which it goes on.
    The last line is a legend.

    Args:
        unit: by default the greatest that all times are multiples of; where there is none or columns are too many, a
            part of the makespan, with times rounded to it.
        batches: names the micro-batch of a job too, as in f0.2.
        color: gives each micro-batch an ANSI background, as the paper's diagrams have.
    """
    unit = unit or column(timeline)
    rows = dict.fromkeys(lines_of(timeline))
    cells: dict[str, dict[int, tuple[str, Job]]] = {name: {} for name in rows}
    width = 1
    for job in timeline.jobs:
        first, last = round(timeline.start[job] / unit), round(timeline.end[job] / unit)
        name = label(job, batches)
        width = max(width, len(name))
        row = cells[line_of(timeline, job)]
        for at in range(first, max(last, first + 1)):
            row[at] = (name if at == first else "", job)
    columns = 1 + max(max(row, default=0) for row in cells.values())
    width = max(width, len(str(columns)))
    margin = max(map(len, rows))
    lines = [" ".join([" " * margin, *(f"{at + 1:<{width}}" for at in range(columns))])]
    for name, row in cells.items():
        drawn = (cell(*row[at], width, color) if at in row else " " * width for at in range(columns))
        lines.append(" ".join([f"{name:<{margin}}", *drawn]))
    lines.append(f"{legend(timeline, batches)}; time in {timeline.units.time}, {shown(unit)} a column")
    if timeline.note:
        lines.append(f"note: {timeline.note}")
    return "\n".join(line.rstrip() for line in lines)


def legend(timeline: Timeline, batches: bool = False) -> str:
    """What the signs of its jobs stand for."""
    meaning = MEANING if timeline.kept_size is None else {**MEANING, B: RUN_AGAIN}
    signs = [f"{SIGNS[d]} {meaning[d]}" for d in SIGNS if d in timeline.jobs.directions]
    own = [d for d in timeline.jobs.directions if d not in SIGNS]
    others = [f"{' '.join(own)} directions of its own"] if own else []
    return ", ".join([*signs, *others, f"each with its {'stage.micro-batch' if batches else 'stage'}"])


def column(timeline: Timeline) -> Any:
    """The unit of time of a text that has room for it."""
    times = {timeline.end[job] for job in timeline.jobs} | {timeline.start[job] for job in timeline.jobs}
    if all(isinstance(time, (int, Fraction)) for time in times):
        scale = math.lcm(*(Fraction(time).denominator for time in times))
        unit = Fraction(math.gcd(*(int(time * scale) for time in times)) or 1, scale)
        if timeline.makespan <= MOST_COLUMNS * unit:
            return int(unit) if unit.denominator == 1 else unit
    return float(timeline.makespan) / 100 or 1


def label(job: Job, batches: bool = False) -> str:
    s, b, d = job
    sign = SIGNS.get(d, f"{d}:" if d[-1].isdigit() else d)
    return f"{sign}{s}.{b}" if batches else f"{sign}{s}"


def cell(name: str, job: Job, width: int, color: bool) -> str:
    padded = f"{name:<{width}}" if name else GOES_ON * width
    return f"\x1b[30;48;5;{PALETTE[job[1] % len(PALETTE)]}m{padded}\x1b[0m" if color else padded


def lines_of(timeline: Timeline) -> Iterator[str]:
    """ "w0", "w1", ...; the lanes of one worker "w0", "w0'", ..."""
    for worker in range(timeline.W):
        for lane in range(timeline.lanes):
            yield f"w{worker}" + "'" * lane


def line_of(timeline: Timeline, job: Job) -> str:
    return f"w{timeline.worker[job]}" + "'" * timeline.lane[job]


def svg(timeline: Timeline, path: str | Path) -> None:
    """Write a diagram: a row for each worker (and lane), a bar for each job, the hue its micro-batch.

    Every bar is a `rect` of class "job" with data-job="s b d", data-worker, data-start and data-end, exact.
    """
    Path(path).write_text(svg_text(timeline), encoding="utf-8")


def svg_text(timeline: Timeline) -> str:
    """The diagram that `svg` writes."""
    rows = {name: HEADER + LANE * at for at, name in enumerate(lines_of(timeline))}
    scale = (WIDTH - MARGIN) / (timeline.makespan or 1)
    height = HEADER + LANE * len(rows) + FOOTER
    units, note = timeline.units, f"; {timeline.note}" if timeline.note else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 8} {height}" width="{WIDTH + 8}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH + 8}" height="{height}" fill="white"/>',
        f'<text x="{MARGIN}" y="16">makespan {shown(timeline.makespan)} {units.time}, bubble {timeline.bubble:.1%} of '
        f"the workers' time, at most {shown(max(timeline.peak_activations))} {units.memory} on a worker</text>",
        f'<text x="{MARGIN}" y="{height - 8}">{legend(timeline)}; a hue for each micro-batch; time goes to the right, '
        f"in {escape(units.time + note)}</text>",
        *(f'<text x="4" y="{y + 17}">{name}</text>' for name, y in rows.items()),
        *(bar(timeline, job, rows[line_of(timeline, job)], scale) for job in timeline.jobs),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def bar(timeline: Timeline, job: Job, y: int, scale: float) -> str:
    s, b, d = job
    start, end, name = timeline.start[job], timeline.end[job], label(job)
    left, width = MARGIN + float(start * scale), float((end - start) * scale)
    facts = quoteattr(f"{s} {b} {d}")
    caption = f'<text x="{left + width / 2:.2f}" y="{y + 16}" text-anchor="middle">{name}</text>'
    return (
        f'<rect class="job" data-job={facts} data-worker="{timeline.worker[job]}" data-start="{start}" '
        f'data-end="{end}" x="{left:.2f}" y="{y + 2}" width="{width:.2f}" height="{LANE - 4}" rx="2" '
        f'fill="hsl({b * 137.5 % 360:.0f} 60% {LIGHTNESS.get(d, 72)}%)" stroke="white">'
        f"<title>{name} of micro-batch {b}: {start} to {end}</title></rect>"
    ) + (caption if width > 7 * len(name) else "")


def chrome_trace(timeline: Timeline, path: str | Path, unit_us: float = 1000.0) -> None:
    """Write trace events for chrome://tracing or Perfetto.

    Each worker (and lane) is a thread, and the activations that it holds are a counter.

    Args:
        unit_us: microseconds to a unit of time.
    """
    threads = {name: at for at, name in enumerate(lines_of(timeline))}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": at, "args": {"name": name}} for name, at in threads.items()
    ]
    for job in timeline.jobs:
        s, b, d = job
        start = float(timeline.start[job]) * unit_us
        took = float(timeline.end[job]) * unit_us - start
        facts = {"stage": s, "micro-batch": b, "direction": d, "worker": timeline.worker[job]}
        at = threads[line_of(timeline, job)]
        events.append(
            {"ph": "X", "name": label(job), "cat": d, "pid": 0, "tid": at, "ts": start, "dur": took, "args": facts}
        )
    for worker, curve in enumerate(timeline.memory):
        events += (
            {
                "ph": "C",
                "name": f"activations of w{worker}",
                "pid": 0,
                "ts": float(now) * unit_us,
                "args": {"held": float(held)},
            }
            for now, held in curve
        )
    Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")
