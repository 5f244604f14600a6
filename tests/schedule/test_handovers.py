"""Messages between workers: each is sent once and received once, by who makes an item and who reads it."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given

from bppsa.errors import ScheduleError
from bppsa.schedule import Timeline, gpipe, simulate
from bppsa.schedule.programs.handovers import Handovers
from bppsa.schedule.programs.messages import Item
from bppsa.schedule.programs.program import Action
from tests.schedule.factories import timelines


def item_of(action: Action) -> Item:
    return Item(action.kind, action.stage, action.batch)


def handovers_of(timeline: Timeline) -> Handovers:
    """Each job makes an item, which those read that need it as data."""
    before = defaultdict(list)
    for p, q in timeline.graph.inputs():
        before[timeline.jobs[q]].append(timeline.jobs[p])
    return Handovers(
        timeline,
        lambda action: [item_of(Action(*job)) for job in before[action]],
        lambda action: [item_of(action)],
    )


@given(timeline=timelines())
def test_what_a_job_reads_was_made_or_received_before(timeline: Timeline) -> None:
    handovers = handovers_of(timeline)
    programs = [list(handovers.steps(worker)) for worker in range(timeline.W)]
    made = {item: at for at, steps in enumerate(programs) for step in steps for item in step.writes}
    for worker, steps in enumerate(programs):
        assert [step.action for step in steps] == timeline.jobs_of[worker]
        received = set[Item]()
        for step in steps:
            assert all((m.target, m.source) == (worker, made[m.item]) for m in step.receives)
            received.update(message.item for message in step.receives)
            assert all(made[item] == worker or item in received for item in step.reads)
    line, jobs = timeline.graph.line, timeline.jobs
    steps_of = {step.action: step for steps in programs for step in steps}
    for p, q in timeline.graph.edges():
        if line[p] != line[q]:
            assert {*steps_of[Action(*jobs[p])].writes} & {*steps_of[Action(*jobs[q])].reads}


@given(timeline=timelines())
def test_each_message_is_sent_once_and_received_once(timeline: Timeline) -> None:
    handovers = handovers_of(timeline)
    steps = [step for worker in range(timeline.W) for step in handovers.steps(worker)]
    sent = [message for step in steps for message in step.sends]
    assert sorted(sent) == sorted(message for step in steps for message in step.receives)
    assert len({message.number for message in sent}) == len(sent)
    assert len({(message.item, message.target) for message in sent}) == len(sent)
    assert all(0 <= message.number < handovers.messages for message in sent)
    assert all(message.source != message.target for message in sent)


def test_an_item_that_no_job_makes_is_an_error() -> None:
    timeline = simulate(gpipe(), S=2, B=2)
    with pytest.raises(ScheduleError, match=r"0F0 of worker 0 reads A1\.0/0, which no job makes"):
        Handovers(timeline, lambda action: [Item("A", action.stage + 1, action.batch)], lambda action: [])
