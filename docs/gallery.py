"""Draws the diagrams of docs/schedules.md: python docs/gallery.py

Four workers, as far as a schedule has them. A backward takes as long as two forwards, or is split into two jobs.
"""

from __future__ import annotations

from pathlib import Path

from bppsa.schedule import (
    Recipe,
    Timeline,
    blelloch,
    ddp,
    depth_first,
    fsdp,
    fslpp,
    gpipe,
    interleaved,
    lpp,
    naive,
    one_f_one_b,
    pipedream,
    simulate,
    v_schedule,
    wavelet_dp,
    wavelet_mp,
    zero_bubble,
)

FOLDER = Path(__file__).parent / "pictures" / "schedules"
# Name of the picture: the schedule, stages, micro-batches.
GALLERY: dict[str, tuple[Recipe, int, int]] = {
    "naive": (naive(), 4, 4),
    "gpipe": (gpipe(), 4, 4),
    "one_f_one_b": (one_f_one_b(), 4, 8),
    "pipedream": (pipedream(), 4, 8),
    "zero_bubble": (zero_bubble(), 4, 8),
    "v_schedule": (v_schedule(), 8, 8),
    "interleaved": (interleaved(2), 8, 8),
    "ddp": (ddp(), 4, 4),
    "fsdp": (fsdp(), 4, 4),
    "lpp": (lpp(G=2), 8, 8),
    "fslpp": (fslpp(G=2), 8, 8),
    "depth_first": (depth_first(G=2), 8, 8),
    "wavelet_dp": (wavelet_dp(), 4, 8),
    "wavelet_mp": (wavelet_mp(), 4, 4),
    "blelloch": (blelloch(8, "blelloch"), 8, 1),
}
WORKERS = {"lpp": 4, "fslpp": 4, "depth_first": 4, "v_schedule": 4, "interleaved": 4, "wavelet_dp": 4}


def drawn(name: str) -> Timeline:
    recipe, S, B = GALLERY[name]
    split = name in ("zero_bubble", "v_schedule")
    return simulate(recipe, S=S, B=B, W=WORKERS.get(name), backward=1 if split else 2)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in GALLERY:
        drawn(name).svg(FOLDER / f"{name}.svg")


if __name__ == "__main__":
    main()
