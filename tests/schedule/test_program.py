"""Programs: printed, parsed, and replayed without a clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bppsa.errors import ScheduleError
from bppsa.schedule import Recipe, Timeline, blelloch, gpipe, one_f_one_b, simulate, v_schedule, zero_bubble
from bppsa.schedule.programs.program import Action, peak_activations, program, replay
from tests.schedule.factories import sizes, timelines


def sequential(timeline: Timeline) -> bool:
    """Whether the lists say in which order activations begin and end."""
    worker = timeline.worker
    return timeline.lanes == 1 and all(worker[s, b, "F"] == worker[s, b, d] for s, b, d in worker)


@given(timeline=timelines().filter(sequential))
def test_memory_is_that_of_a_replay(timeline: Timeline) -> None:
    assert peak_activations(program(timeline), timeline.graph.schedule) == timeline.peak_activations


@pytest.mark.parametrize("recipe", [zero_bubble(), v_schedule(), one_f_one_b(), blelloch(4, "doubling")], ids=repr)
def test_memory_is_that_of_a_replay_where_the_backward_is_split_or_a_scan(recipe: Recipe) -> None:
    timeline = simulate(recipe, S=4, B=6)
    assert peak_activations(program(timeline), timeline.graph.schedule) == timeline.peak_activations


@given(timeline=timelines())
def test_actions_print_and_parse(timeline: Timeline) -> None:
    for actions in program(timeline):
        assert [Action.parse(str(action)) for action in actions] == actions


@given(S=sizes, B=st.integers(1, 12))
def test_a_program_as_by_hand(S: int, B: int) -> None:
    (last,) = program(simulate(one_f_one_b(), S=S, B=B))[-1:]
    assert " ".join(map(str, last)) == " ".join(f"{S - 1}F{b} {S - 1}B{b}" for b in range(B))


def test_a_deadlock_names_the_heads() -> None:
    timeline = simulate(gpipe(), S=2, B=2)
    first, second = program(timeline)
    first.insert(1, first.pop(2))  # 0F0 0B0 0F1 0B1 against 1F0 1F1 ...
    with pytest.raises(ScheduleError, match="worker 0 at 0B0, worker 1 at 1F1"):
        list(replay([first, second], timeline.graph.schedule))


@pytest.mark.parametrize("text", ["", "2F", "F0", "2f0", "2F0 ", "-1F0"])
def test_what_is_no_action(text: str) -> None:
    with pytest.raises(ScheduleError, match="is no action"):
        Action.parse(text)
