"""Table 1: where the paper's formulas hold, where they do not, and that every difference has its reason."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bppsa.schedule import table1
from bppsa.schedule.tables import COLUMNS
from tests.schedule.factories import sizes


@given(S=sizes, B=sizes, G=sizes, R=sizes)
def test_a_cell_has_a_reason_where_a_worker_differs(S: int, B: int, G: int, R: int) -> None:
    cells = table1(S, B, G, R).cells
    assert len(cells) == 5 * len(COLUMNS)
    for cell in cells.values():
        assert bool(cell.reason) == (not cell.least == cell.greatest == cell.paper)
    assert not any(cells["DDP", column].reason for column in COLUMNS)
    assert not cells["FSDP", "latency"].reason
    assert not cells["PP", "latency"].reason
    assert cells["PP", "activations stored"].greatest == min(S, B)


@given(R=st.integers(1, 5), loops=st.integers(1, 3), G=st.integers(1, 4), m=st.integers(1, 6))
def test_what_holds_of_looped_pipelines(R: int, loops: int, G: int, m: int) -> None:
    """Whole groups and loops: the latency up to m = R, or with one loop; storage of weights, and of activations up to
    m = S. Received activations are B only where W = S."""
    S, B = R * loops, m * G
    cells = table1(S, B, G, R).cells
    assert bool(cells["LPP", "latency"].reason) == (m > R and R < S)
    assert not cells["LPP", "weights stored"].reason
    assert cells["LPP", "activations stored"].greatest == loops * m >= cells["LPP", "activations stored"].paper
    assert cells["LPP", "activations received"].greatest == (0 if R == 1 else loops * m)


def test_the_case_below_the_work_bound() -> None:
    """S = 8, G = 2, R = 1, B = 8: two workers cannot do 64 units of work in 11."""
    cell = table1(8, 8, 2, 1).cells["LPP", "latency"]
    assert (cell.paper, cell.least, cell.greatest) == (11, 32, 32)
    assert "mS/R + R - 1" in cell.reason


def test_it_prints_as_a_table() -> None:
    lines = str(table1(4, 6, 3, 2)).splitlines()
    assert lines[0] == "paper / simulated"
    assert [line.split()[0] for line in lines[2:7]] == ["DDP", "FSDP", "PP", "LPP", "FSLPP"]
    assert lines[2].split("  ")[0] == "DDP"
    assert "3 / 3 to 4 *" in lines[3]
    assert "* FSDP, weights received: a worker that owns no stage fetches all S; W = B leaves B - S of them" in lines
    assert any(line.startswith("* LPP and FSLPP, activations received:") for line in lines)
