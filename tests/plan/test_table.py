"""The text form of the selection table: round trips, coverage, and errors that name the column."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcomm._core import Collective, InvalidArgumentError, SelectionTable

COLLECTIVES = ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "barrier"]
INFINITY = 2**63 - 1


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[str, int, int, str]]:
    found = []
    for collective in draw(st.lists(st.sampled_from(COLLECTIVES), unique=True)):
        bounds = sorted(draw(st.sets(st.integers(0, 2**40), min_size=2, max_size=6)))
        if draw(st.booleans()):
            bounds.append(INFINITY)
        for low, high in pairwise(bounds):
            name = draw(st.sampled_from(["auto", "flat", "hierarchical_ring"]))
            found.append((collective, low, high, name))
    return found


def as_tuples(table: SelectionTable) -> list[tuple[str, int, int, str]]:
    return [(row.collective.name, row.from_, row.to, row.algorithm) for row in table.rows]


@given(rows())
def test_text_round_trips(wanted: list[tuple[str, int, int, str]]) -> None:
    text = ";".join(
        f"{name}:{low}-{'inf' if high == INFINITY else high}={algorithm}"
        for name, low, high, algorithm in wanted
    )
    table = SelectionTable(text)
    assert as_tuples(table) == wanted
    again = SelectionTable(str(table))
    assert as_tuples(again) == wanted
    assert str(again) == str(table)


def test_suffixes_are_read_and_written() -> None:
    text = "all_reduce:0-4k=flat,4k-3M=hierarchical_ring,1G-inf=auto;broadcast:0-inf=flat"
    table = SelectionTable(text)
    assert str(table) == text
    assert [row.to for row in table.rows] == [4096, 3 << 20, INFINITY, INFINITY]


def test_lower_bound_is_included_and_upper_excluded() -> None:
    table = SelectionTable("all_reduce:16-4k=flat,4k-8k=hierarchical_ring")
    sizes = [0, 15, 16, 4095, 4096, 8191, 8192]
    names = [table.algorithm(Collective.all_reduce, size) for size in sizes]
    ring = "hierarchical_ring"
    assert names == ["auto", "auto", "flat", "flat", ring, ring, "auto"]
    assert table.algorithm(Collective.reduce, 16) == "auto"


def test_empty_table_leaves_everything_to_the_model() -> None:
    assert SelectionTable().rows == []
    assert str(SelectionTable("")) == ""
    assert SelectionTable().algorithm(Collective.all_reduce, 0) == "auto"


@pytest.mark.parametrize(
    ("text", "column", "expected", "got"),
    [
        ("all_redcue:0-inf=flat", 1, "a collective", "all_redcue"),
        ("all_reduce", 11, '":" after the collective', "the end"),
        ("all_reduce:zero-inf=flat", 12, "a size", "zero"),
        ("all_reduce:-4k=flat", 12, "a size", ""),
        ("all_reduce:0=flat", 13, '"-" between', "=flat"),
        ("all_reduce:0-4q=flat", 14, "a size", "4q"),
        ("all_reduce:0-4k", 16, '"=" before', "the end"),
        ("all_reduce:0-4k=", 17, "the name of an algorithm", "the end"),
        ("all_reduce:4k-4k=flat", 12, "a range that is not empty", "4k-4k"),
        ("all_reduce:0-8k=flat,4k-inf=auto", 22, "a range apart from 0-8k", "4k-inf"),
        ("all_reduce:0-4k=flat:broadcast", 21, '";" or "," after', ":broadcast"),
    ],
)
def test_error_names_column_expected_and_got(
    text: str, column: int, expected: str, got: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        SelectionTable(text)
    message = str(caught.value)
    assert f"column {column}: expected {expected}" in message
    assert f'got "{got}' in message
