"""torch's schedules come in and ours go out as its CSV."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bppsa.errors import ScheduleError
from bppsa.schedule import (
    Schedule,
    blelloch,
    ddp,
    from_torch,
    fsdp,
    fslpp,
    gpipe,
    lpp,
    naive,
    one_f_one_b,
    pipedream,
    simulate,
    to_torch,
    wavelet_dp,
    wavelet_mp,
    zero_bubble,
)
from tests.breadth import examples

GPIPE = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"


def test_a_csv_is_a_strict_schedule(tmp_path: Path) -> None:
    (tmp_path / "gpipe.csv").write_text(GPIPE)
    for source in (GPIPE, tmp_path / "gpipe.csv", str(tmp_path / "gpipe.csv")):
        timeline = simulate(from_torch(source), S=2, B=2)
        assert timeline.makespan == simulate(gpipe(), S=2, B=2).makespan == 6
        assert timeline.W == 2


@pytest.mark.parametrize(("S", "B"), [(1, 2), (3, 2), (2, 1), (2, 3)])
def test_a_csv_is_for_its_own_numbers(S: int, B: int) -> None:
    with pytest.raises(ScheduleError, match=f"jobs of S=2 and B=2, and not of S={S} and B={B}"):
        simulate(from_torch(GPIPE), S=S, B=B)


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
        ("0B0,0F0\n", "the strict order is a deadlock"),
        ("0F0,0F1,0B0\n", r"no rank of the torch schedule runs job \(0, 1, 'B'\)"),
        ("missing.csv", "there is no file 'missing.csv'"),
    ],
)
def test_broken_csv(text: str, words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        simulate(from_torch(text), S=1, B=1)


def test_not_a_schedule() -> None:
    with pytest.raises(ScheduleError, match="int is no CSV and has no pipeline_order"):
        from_torch(3)


@examples(50)
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


def half_sharded(S: int, B: int, W: int | None = None) -> Schedule:
    """Replicas of stage 0, one owner of the others."""
    return Schedule(lambda s, b, d: (b % 2 if s == 0 else 0, b % 2), directions=("F", "B", "W"))


@pytest.mark.parametrize(
    ("schedule", "B", "W", "words"),
    [
        (split_ddp, 4, None, "split backward.*144530"),
        (wavelet_mp(), 3, None, "stage 0 is on ranks 0 and 1"),
        (wavelet_dp(), 4, None, "torch knows no lanes"),
        (blelloch(3), 1, None, "torch knows no jobs of direction R"),
        (pipedream(), 4, None, "torch ends every step in a flush"),
        (ddp(), 3, 2, "that of group 1 differs from group 0's"),
        (Schedule(lambda s, b, d: (0, int(d == "B"))), 2, None, "stage . is on ranks 0 and 1"),
        (Schedule(lambda s, b, d: (b // 2, b // 2)), 4, None, "b mod 2 = g"),
        (
            Schedule(lambda s, b, d: (0, s)),
            4,
            None,
            r"stage 1, which runs on workers \[1\], are owned by \[0\]",
        ),
        (fsdp(), 2, 3, r"stage 2, which runs on workers \[0, 1\], are owned by \[2\]"),
        (half_sharded, 2, None, r"stage 0, which runs on workers \[0, 1\], are owned by \[0, 1\]"),
    ],
)
def test_what_torch_would_get_wrong_is_refused(schedule: Any, B: int, W: int | None, words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        to_torch(schedule, S=3, B=B, W=W)


def torch_schedule(name: str, ranks: int, stages: int, batches: int) -> Any:
    """A schedule of torch's own, made without a process group."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    if not hasattr(schedules, name):
        pytest.skip(f"this torch has no {name}")
    mine = stages_of_torch(ranks, stages)
    return getattr(schedules, name)(mine if stages > ranks else mine[0], batches)


def stages_of_torch(ranks: int, stages: int) -> list[SimpleNamespace]:
    """What a schedule reads of rank 0's stages when it is made."""
    return [
        SimpleNamespace(
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


# Four ranks, eight micro-batches, F = I = W = 1: stages, makespan with the bubble that the literature gives (9 of a
# pipeline, also of a looped one; 3 of zero bubble), and the greatest peak of activations.
KNOWN = {
    "ScheduleGPipe": (4, 24 + 9, 8),
    "ScheduleLoopedBFS": (8, 48 + 9, 16),
    "ScheduleInterleaved1F1B": (8, 48 + 9, 11),
    "ScheduleInterleavedZeroBubble": (8, 48 + 3, 8),
    "ScheduleZBVZeroBubble": (8, 48 + 3, 8),
    "ScheduleDualPipeV": (8, 48 + 3, 9),
}


@pytest.mark.parametrize("name", KNOWN)
def test_torchs_own_schedules_replay(name: str, tmp_path: Path) -> None:
    stages, makespan, peak = KNOWN[name]
    theirs = torch_schedule(name, ranks=4, stages=stages, batches=8)
    schedule = from_torch(theirs)
    backward = 1 if "W" in schedule.directions else 2
    timeline = simulate(schedule, S=stages, B=8, backward=backward)
    assert (timeline.W, timeline.makespan, max(timeline.peak_activations)) == (4, makespan, peak)
    if hasattr(theirs, "_dump_csv"):
        theirs._dump_csv(str(tmp_path / "theirs.csv"))
        written = simulate(from_torch(tmp_path / "theirs.csv"), S=stages, B=8, backward=backward)
        assert dict(written.start) == dict(timeline.start)


def test_torchs_1f1b_is_refused_where_it_lacks_jobs() -> None:
    """torch 2.13: the last rank's list has micro-batches 1 to B. Where that is mended, it is ours."""
    theirs: Any = torch_schedule("Schedule1F1B", ranks=4, stages=4, batches=8)
    if any(str(action) == "3F0" for action in theirs.pipeline_order[3] if action is not None):
        timeline = simulate(from_torch(theirs), S=4, B=8)
        assert dict(timeline.start) == dict(simulate(one_f_one_b(), S=4, B=8).start)
    else:
        with pytest.raises(ScheduleError, match=r"no rank .* runs job \(0, 8, 'F'\).* take one_f_one_b\(\)"):
            from_torch(theirs)


def test_the_lists_that_torch_loads_are_ours(tmp_path: Path) -> None:
    """Our CSV in torch's own reader, and what it lowered back in ours."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    path = tmp_path / "ours.csv"
    path.write_text(to_torch(lpp(G=1, R=4), S=8, B=8))
    runtime = schedules._PipelineScheduleRuntime(stages_of_torch(4, 8), 8)
    runtime._load_csv(str(path), "compute_only")
    loaded, ours = simulate(from_torch(runtime), S=8, B=8), simulate(lpp(G=1, R=4), S=8, B=8)
    assert dict(loaded.start) == dict(ours.start)
    assert loaded.jobs_of == ours.jobs_of
