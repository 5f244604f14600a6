"""What `plan_training` returns: schedules that were ranked for a model, as a table and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bppsa.distributed.planned.page import page_of
from bppsa.distributed.planned.ranking import PlannedSchedule, Ranking
from bppsa.distributed.planned.texts import gb
from bppsa.schedule.compare import in_columns

SHOWN = 10  # rows of a table that is printed
HEADS = (
    *("schedule", "stages", "ms a step", "ms of sums", "bubble %", "GB a worker"),
    *("weights GB", "gradients GB", "optimizer GB", "fetched GB", "activations GB"),
)
LEGEND = (
    "ms a step: predicted; sums: of gradients over workers, behind the last job. GB: 10^9 bytes of the worker that "
    "holds most,\nin all and of each kind; what one op needs for itself while it runs is not counted"
)


@dataclass(frozen=True)
class TrainingPlan:
    """Schedules for a model on workers, by predicted ms a step.

    Attributes:
        ranking: what fits (best first), what is too large, and what cannot run.
        about: the model, the rates and the counts that this was computed from, a line each.
    """

    ranking: Ranking
    about: tuple[str, ...]

    @property
    def best(self) -> PlannedSchedule:
        """Return the fastest of those that fit; its `schedule` is what `bppsa.compile` takes."""
        return self.ranking.fit[0]

    def __str__(self) -> str:
        return self.text()

    def text(self, rows: int | None = SHOWN) -> str:
        """Return the table with so many rows, and a line about the other schedules; rows=None: with all, and why each
        that is not in the table is not."""
        lines = in_columns([HEADS, *map(cells, self.ranking.fit[:rows])])
        others = self._summary(len(lines) - 1) if rows is not None else self._reasons()
        return "\n".join([*self.about, "", *lines, LEGEND, *others])

    def _summary(self, shown: int) -> list[str]:
        found = self.ranking
        counts = {"fit": len(found.fit) - shown, "do not fit": len(found.large), "cannot run": len(found.refused)}
        told = [f"{count} that {what}" for what, count in counts.items() if count]
        return [f"not shown: {', '.join(told)}; text(rows=None), in a terminal --all, tells of each"] if told else []

    def _reasons(self) -> list[str]:
        large = [
            f"does not fit: {one.name}, {len(one.stages)} stages: {gb(one.memory)} GB" for one in self.ranking.large
        ]
        names: dict[str, list[str]] = {}
        for name, why in self.ranking.refused.items():
            names.setdefault(why, []).append(name)
        return [*large, *(f"cannot run: {'; '.join(of)}: {why}" for why, of in names.items())]

    def html(self, path: str | Path) -> None:
        """Write one page without outside parts: the best timeline, the memory of its workers over time, the table."""
        rows = [*map(cells, self.ranking.fit)]
        text = page_of(self.best, self.about, HEADS, rows, LEGEND.replace("\n", " "))
        Path(path).write_text(text, encoding="utf-8")


def cells(one: PlannedSchedule) -> Sequence[str]:
    kinds = (one.memory, one.weights, one.gradients, one.optimizer, one.fetched, one.activations)
    return (
        *(
            one.name,
            str(len(one.stages)),
            f"{one.ms:.4g}",
            f"{one.sums_ms:.4g}",
            f"{max(100 * one.timeline.bubble, 0):.1f}",
        ),
        *map(gb, kinds),
    )
