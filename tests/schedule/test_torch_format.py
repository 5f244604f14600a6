"""torch's schedules come in and ours go out as its CSV."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bppsa.errors import ScheduleError
from bppsa.schedule import (
    Schedule,
    ddp,
    from_torch,
    fsdp,
    fslpp,
    gpipe,
    lpp,
    naive,
    one_f_one_b,
    simulate,
    to_torch,
    wavelet_mp,
    zero_bubble,
)

GPIPE = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"


def test_a_csv_is_a_strict_schedule(tmp_path: Path) -> None:
    (tmp_path / "gpipe.csv").write_text(GPIPE)
    for source in (GPIPE, tmp_path / "gpipe.csv", str(tmp_path / "gpipe.csv")):
        timeline = simulate(from_torch(source), S=2, B=2)
        assert timeline.makespan == simulate(gpipe(), S=2, B=2).makespan == 6
        assert timeline.W == 2


def test_what_torch_adds_is_found_out_by_the_simulator() -> None:
    lowered = "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n1RECV_F0,1F0,1B0,1SEND_B0,\n"
    assert list(from_torch(lowered).jobs or ()) == [(0, 0, "F"), (0, 0, "B"), (1, 0, "F"), (1, 0, "B")]


def test_overlapped_and_whole_backwards() -> None:
    timeline = simulate(from_torch("0F0,(0F1;0I0)OVERLAP_F_B,0W0,0B1\n"), S=1, B=2)
    assert timeline.jobs_of == [
        [(0, 0, "F"), (0, 1, "F"), (0, 0, "B"), (0, 0, "W"), (0, 1, "B"), (0, 1, "W")],
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0F0,nonsense\n", "'nonsense' is no action"),
        ("0F0\n0F0\n", r"\(0, 0, 'F'\) is on rank 0 and on rank 1"),
        ("\n", "no job"),
        ("0B0,0F0\n", "deadlock|cycle"),
    ],
)
def test_broken_csv(text: str, words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        simulate(from_torch(text), S=1, B=1)


def test_not_a_schedule() -> None:
    with pytest.raises(ScheduleError, match="int is no CSV and has no pipeline_order"):
        from_torch(3)


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from([naive(), gpipe(), one_f_one_b(), zero_bubble(), lpp(G=1, R=2), lpp(G=2, R=2), ddp(), fsdp()]),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_there_and_back(recipe: object, S: int, rounds: int) -> None:
    B = 2 * rounds
    W = 2 if getattr(recipe, "name", "") in ("ddp", "fsdp") else None
    ours = simulate(recipe, S=S, B=B, W=W, backward=2)
    text = to_torch(recipe, S=S, B=B, W=W, backward=2)
    assert text.groups * text.ranks == len([row for row in ours.jobs_of if row])
    theirs = simulate(from_torch(text), S=S, B=B // text.groups, backward=2)
    group = [
        [(s, b // text.groups, d) for s, b, d in row] for row in ours.jobs_of if row and row[0][1] % text.groups == 0
    ]
    assert theirs.jobs_of == group
    if text.groups == 1:
        assert theirs.makespan == ours.makespan


def test_the_mesh() -> None:
    replicated, sharded = to_torch(lpp(G=2, R=2), S=4, B=4), to_torch(fslpp(G=2, R=2), S=4, B=4)
    assert (replicated.groups, replicated.ranks, replicated.sharded) == (2, 2, False)
    assert (sharded.groups, sharded.ranks, sharded.sharded) == (2, 2, True)
    assert replicated == sharded


def split_ddp(S: int, B: int, W: int | None = None) -> Schedule:
    return Schedule(lambda s, b, d: (b % 2, b % 2), directions=("F", "B", "W"))


@pytest.mark.parametrize(
    ("schedule", "B", "words"),
    [
        (split_ddp, 4, "split backward.*144530"),
        (wavelet_mp(), 3, "stage 0 is on ranks 0 and 1"),
        (ddp(), 3, "group g has to take|differs from group 0"),
        (Schedule(lambda s, b, d: (0, int(d == "B"))), 2, "stage . is on ranks 0 and 1"),
        (Schedule(lambda s, b, d: (b // 2, b // 2)), 4, "b mod 2 = g"),
    ],
)
def test_what_torch_would_get_wrong_is_refused(schedule: object, B: int, words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        to_torch(schedule, S=3, B=B, W=2 if words.startswith("group g") else None)


def torch_schedule(name: str, ranks: int, stages: int, batches: int) -> object:
    """A schedule of torch's own, made without a process group."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    if not hasattr(schedules, name):
        pytest.skip(f"this torch has no {name}")
    stage = SimpleNamespace  # a schedule reads these of a stage when it is made
    mine = [
        stage(
            is_first=at == 0,
            is_last=at == stages - 1,
            group_size=ranks,
            group_rank=0,
            num_stages=stages,
            stage_index=at,
            has_backward=False,
            stage_index_to_group_rank={},
            submod=None,
            group=None,
            device="cpu",
        )
        for at in range(0, stages, ranks)
    ]
    return getattr(schedules, name)(mine, batches)


# Four ranks, two stages a rank, eight micro-batches, F = I = W = 1, so 48 units of work: makespan with the bubble that
# the literature gives (3 (F + I + W) of a looped pipeline, 3 of zero bubble), and the greatest peak of activations.
KNOWN = {
    "ScheduleLoopedBFS": (48 + 9, 16),
    "ScheduleInterleaved1F1B": (48 + 9, 11),
    "ScheduleInterleavedZeroBubble": (48 + 3, 8),
    "ScheduleZBVZeroBubble": (48 + 3, 8),
}


@pytest.mark.parametrize("name", KNOWN)
def test_torchs_own_schedules_replay(name: str) -> None:
    schedule = from_torch(torch_schedule(name, ranks=4, stages=8, batches=8))
    split = "W" in schedule.directions
    timeline = simulate(schedule, S=8, B=8, backward=1 if split else 2)
    assert (timeline.makespan, max(timeline.peak_activations)) == KNOWN[name]
