"""The distributed scan: every middle gives each chunk the product of all that comes after it, in order."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bppsa.errors import ScheduleError
from bppsa.schedule import Job, blelloch, simulate
from bppsa.schedule.zoo.time_chunks import END, MIDDLES, with_ends

middles = st.sampled_from(sorted(MIDDLES))
Word = tuple[int, ...]  # which summaries a job's result is the product of, in order


def words(K: int, middle: str, layers: int) -> dict[Job, Word]:
    """The scan on words, whose concatenation is as associative as matrices are, and commutes as little: every job of
    the scan concatenates what it reads, R with its chunk behind. Of each B, what enters it, or its R before it."""
    schedule = blelloch(K, middle).build(K * layers, 1)
    assert schedule.inputs is not None
    found: dict[Job, Word] = {}

    def entering(job: Job) -> Word:
        sources = [source for source in schedule.inputs(*job) if source[2] not in "FB"]
        if job[2] == "B" and (own := (job[0], job[1], "R")) in sources:
            assert sources == [own]
            return entering(own)
        return sum(map(word, sources), ())

    def word(job: Job) -> Word:
        if job not in found:
            found[job] = entering(job) + job[:1] * (job[2] == "R")
        return found[job]

    return {(s, 0, "B"): entering((s, 0, "B")) for s in range(K * layers)}


@given(K=st.integers(2, 40), middle=middles, layers=st.integers(1, 3))
def test_every_middle_is_an_exclusive_scan_from_the_end(K: int, middle: str, layers: int) -> None:
    """Of each layer, stages l * K to l * K + K - 1."""
    first = [(layer * K, layer * K + k) for layer in range(layers) for k in range(K)]
    assert words(K, middle, layers) == {(s, 0, "B"): tuple(range(of + K - 1, s, -1)) for of, s in first}


@given(K=st.integers(2, 8), B=st.integers(1, 3), layers=st.integers(1, 3), middle=middles)
def test_layers_follow_each_other_on_the_worker_of_their_chunk(K: int, B: int, layers: int, middle: str) -> None:
    timeline = simulate(blelloch(K, middle), S=K * layers, B=B)
    assert all(timeline.worker[s, b, d] == s % K for s, b, d in timeline.jobs)
    assert timeline.activation_receives == [0] + [B * layers] * (K - 1)
    for s, b, d in timeline.jobs:
        if d == "F" and s >= K:
            assert timeline.end[s - K, b, "F"] <= timeline.start[s, b, "F"]
        if d in "RB" and s < K * (layers - 1):
            assert timeline.end[s + K, b, "B"] <= timeline.start[s, b, d]


def test_layers_run_forward_as_a_wave() -> None:
    """L * K stages in L + K - 1 steps."""
    timeline = simulate(blelloch(4), S=12, B=1)
    assert max(timeline.end[s, 0, "F"] for s in range(12)) == 3 + 4 - 1


@given(K=st.integers(1, 40), B=st.integers(1, 3), middle=middles)
def test_every_job_but_a_sweep_is_read_by_another(K: int, B: int, middle: str) -> None:
    timeline = simulate(blelloch(K, middle), S=K, B=B)
    read = {p for p, _ in timeline.graph.inputs()}
    assert {timeline.jobs[number][2] for number in range(len(timeline.jobs)) if number not in read} == {"B"}
    assert timeline.activation_receives == [0] + [B] * (K - 1)


@pytest.mark.parametrize("log_K", range(1, 8))
def test_depth_and_work(log_K: int) -> None:
    """K - 1 messages in a chain, about 2 log2 K in the tree, log2 K by doubling; products of matrices: none, less than
    K, less than K log2 K. Read off timelines in which only the scan takes time. Without summaries: K - 1 sweeps."""
    K = 2**log_K
    free = {"S": K, "B": 1, "forward": 0, "backward": 0}
    spans = {m: simulate(blelloch(K, m), costs={"R": 0}, **free).makespan for m in MIDDLES}
    assert spans["chain"] == K - 1
    assert spans["linear"] == 0
    assert simulate(blelloch(K, "linear"), **free).makespan == K - 1
    assert spans["doubling"] == (K - 2).bit_length()
    assert spans["blelloch"] <= 2 * log_K
    counts = {m: sum(d[0] in "UH" for _, _, d in simulate(blelloch(K, m), **free).start) for m in MIDDLES}
    assert counts["chain"] == 0
    assert counts["blelloch"] == K - 1 - log_K
    assert K - 1 - log_K <= counts["doubling"] <= K * log_K


@given(K=st.integers(1, 20), B=st.integers(1, 4), middle=middles)
def test_memory_is_a_chunk_a_micro_batch(K: int, B: int, middle: str) -> None:
    timeline = simulate(blelloch(K, middle), S=K, B=B)
    assert max(timeline.peak_activations) <= B
    assert timeline.weight_receives == [0] * K
    assert simulate(blelloch(K, middle), S=1, B=B).makespan == timeline.makespan


def test_reductions_fill_the_bubble_of_the_forward() -> None:
    """The first chunks reduce while the last still runs forward."""
    timeline = simulate(blelloch(4), S=4, B=4)
    assert timeline.end[1, 0, "R"] < timeline.end[3, 3, "F"]
    (first, *_, last) = timeline.jobs_of
    assert [d for _, _, d in first] == ["F"] * 4 + ["B"] * 4
    assert [d for _, _, d in last][:3] == ["F", "F", "F"]


@given(K=st.integers(2, 8), B=st.integers(1, 4), middle=middles)
def test_a_worker_prefers_what_others_wait_for(K: int, B: int, middle: str) -> None:
    """The scan, then forwards, summaries, sweeps: whatever of a worker's jobs was ready when it chose another."""
    timeline = simulate(blelloch(K, middle), S=K, B=B)
    jobs = list(timeline.jobs)
    ready = dict.fromkeys(jobs, 0)
    for p, q in timeline.graph.inputs():
        ready[jobs[q]] = max(ready[jobs[q]], timeline.end[jobs[p]])
    for of in timeline.jobs_of:
        for chosen, later in pairwise(of):
            if ready[later] <= timeline.start[chosen]:
                order = MIDDLES[middle](K).first
                assert order.find(chosen[2]) <= order.find(later[2])


def test_fewer_workers_than_chunks() -> None:
    timeline = simulate(blelloch(8), S=8, B=2, W=2)
    assert [timeline.worker[k, 0, "F"] for k in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert timeline.activation_receives == [0, 2]


def test_refusals() -> None:
    with pytest.raises(ScheduleError, match="K=4 chunks has S=4 stages"):
        simulate(blelloch(4), S=3, B=1)
    with pytest.raises(ScheduleError, match="chain, linear, blelloch, doubling"):
        blelloch(4, middle="ladner-fischer")


@given(K=st.integers(1, 6), B=st.integers(1, 3), layers=st.integers(1, 3), middle=middles)
def test_ends_are_behind_the_last_layer_and_no_forward_waits_for_them(K: int, B: int, layers: int, middle: str) -> None:
    S = K * layers
    plain = simulate(blelloch(K, middle), S=S, B=B)
    timeline = simulate(with_ends(plain.graph.schedule, S, K), S=S, B=B, W=K, costs={END: 7})
    assert set(timeline.jobs) - set(plain.jobs) == {(s, b, END) for s in range(S - K, S) for b in range(B)}
    reads = {(timeline.jobs[p], timeline.jobs[q]) for p, q in timeline.graph.inputs()}
    assert not any(p[2] == END and q[2] not in "RB" for p, q in reads)
    for s in range(S - K, S):
        for b in range(B):
            assert timeline.worker[s, b, END] == s % K
            assert ((s, b, "F"), (s, b, END)) in reads
            assert all(((s, b, END), job) in reads for job in ((s, b, "R"), (s, b, "B")) if job in timeline.start)
