"""A plan as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bppsa.distributed.planned.ranking import GIGA, PlannedSchedule
from bppsa.distributed.planned.texts import gb
from bppsa.schedule.draw import svg_text

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 900, 240, 60, 16, 28  # px
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #222 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .85rem; white-space: nowrap }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left } tbody tr:first-child { background: #e8f4e8 }
svg { display: block } svg.memory { min-width: 40rem; width: 100%; height: auto }
"""


def page_of(
    best: PlannedSchedule, about: Sequence[str], heads: Sequence[str], rows: Sequence[Sequence[str]], legend: str
) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>A training plan</title><style>{STYLE}</style></head><body>
<h1>{escape(best.name)}: {best.ms:.4g} ms a step, {gb(best.memory)} GB a worker</h1>
<p>{"<br>".join(map(escape, about))}</p>
<h2>Timeline</h2>
<div class="wide">{svg_text(best.timeline)}</div>
<h2>Activations on each worker, in GB</h2>
<div class="wide">{memory_curves(best)}</div>
<h2>Schedules that fit, best first</h2>
<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table></div>
<p>{escape(legend)}</p>
</body></html>
"""


def memory_curves(best: PlannedSchedule) -> str:
    """A line of steps for each worker: time to the right in ms, bytes of activations upwards."""
    timeline = best.timeline
    most = max((float(size) for size in timeline.peak_activations), default=0.0) or 1.0
    across = (WIDTH - LEFT) / (float(timeline.makespan) or 1.0)
    floor = HEIGHT - BOTTOM

    def y(size: float) -> float:
        return floor - (floor - TOP) * size / most

    lines = []
    for worker, curve in enumerate(timeline.memory):
        at, path = float(floor), [f"M{LEFT} {floor}"]
        for now, size in curve:
            at = y(float(size))
            path.append(f"H{LEFT + float(now) * across:.2f}V{at:.2f}")
        hue = worker * 137.5 % 360
        lines.append(
            f'<path d="{"".join(path)}" fill="none" stroke="hsl({hue:.0f} 60% 45%)" stroke-width="1.5">'
            f"<title>worker {worker}</title></path>"
        )
    return (
        f'<svg class="memory" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 8} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12"><path d="M{LEFT} {TOP}V{floor}H{WIDTH}" fill="none" stroke="#888"/>'
        f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{most / GIGA:.3g}</text>'
        f'<text x="{LEFT - 6}" y="{floor}" text-anchor="end">0</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 8}" text-anchor="end">{float(timeline.makespan):.4g} ms</text>'
        f"{''.join(lines)}</svg>"
    )
