"""Layouts: what they say of ranks and layers, their file, and their refusals."""

from dataclasses import replace

import pytest

import hetcomm
from hetcomm.plan import Layout, Replica, Stage


def two_stages() -> Layout:
    """Two stages of two replicas each; the first stage has tensor degree 2 in replica 0."""
    return Layout(
        stages=(
            Stage(((0, 3),), (Replica((0, 1)), Replica((4,)))),
            Stage(((3, 6),), (Replica((2,)), Replica((3,)))),
        ),
        batch=16,
        micro_batch=2,
    )


def interleaved() -> Layout:
    return Layout(
        stages=(
            Stage(((0, 2), (4, 5)), (Replica((1,)),)),
            Stage(((2, 4), (5, 8)), (Replica((0,)),)),
        ),
        batch=4,
        micro_batch=1,
        schedule="interleaved",
    )


def test_degrees_follow_from_the_parts() -> None:
    layout = two_stages()
    assert (layout.replicas, layout.micro_batches, layout.layers) == (2, (4, 4), 6)
    assert layout.ranks == [0, 1, 2, 3, 4]
    assert layout.place(1) == (0, 0, 1)
    assert layout.place(3) == (1, 1, 0)


def test_shares_are_micro_batches_of_replicas() -> None:
    layout = replace(two_stages(), shares=(5, 3))
    assert layout.micro_batches == (5, 3)
    assert replace(layout, batch=8, shares=(1, 3)).micro_batches == (1, 3)


def test_shares_that_do_not_fit_are_refused() -> None:
    layout = two_stages()
    with pytest.raises(hetcomm.InvalidArgumentError, match="batch / micro_batch = 8, got"):
        replace(layout, shares=(5, 4))
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"micro_batch = 7\.5, got"):
        replace(layout, batch=15, shares=(5, 2))
    with pytest.raises(hetcomm.InvalidArgumentError, match="one for each of 2 replicas"):
        replace(layout, shares=(8,))
    with pytest.raises(hetcomm.InvalidArgumentError, match="at least 1, got 0"):
        replace(layout, shares=(8, 0))


def test_replicas_of_unlike_tensor_degrees_share_weights_by_parts() -> None:
    assert two_stages().data_groups(0) == [[0, 4], [1, 4]]
    assert two_stages().data_groups(1) == [[2, 3]]


def test_context_ranks_hold_the_same_weights() -> None:
    stage = Stage(((0, 3),), (Replica((0, 1, 2, 3), context=2), Replica((4, 5, 6, 7), context=2)))
    layout = Layout((stage,), batch=2, micro_batch=1)
    assert layout.data_groups(0) == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize(
    "layout",
    [two_stages(), interleaved(), replace(two_stages(), shares=(2, 6))],
    ids=["1f1b", "interleaved", "shares"],
)
def test_a_saved_layout_loads_as_it_was(layout: Layout, tmp_path) -> None:
    layout.save(tmp_path / "layout.json")
    assert Layout.load(tmp_path / "layout.json") == layout


def test_parts_that_do_not_fit_are_refused() -> None:
    layout = two_stages()
    first, second = layout.stages
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"a multiple of micro_batch .* = 4"):
        replace(layout, batch=15)
    with pytest.raises(hetcomm.InvalidArgumentError, match="layers from 3 on"):
        replace(layout, stages=(first, replace(second, chunks=((4, 6),))))
    with pytest.raises(hetcomm.InvalidArgumentError, match="2, as in stage 0"):
        replace(layout, stages=(first, replace(second, replicas=(Replica((2,)),))))
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"each rank once, got \[4\] again"):
        replace(layout, stages=(first, replace(second, replicas=(Replica((4,)), Replica((3,))))))
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"a rank: expected a whole .*, got a"):
        replace(layout, stages=(first, replace(second, replicas=(Replica(("a",)), Replica((3,))))))
    with pytest.raises(hetcomm.InvalidArgumentError, match="a divisor of the stage's largest, 3"):
        replace(layout, stages=(replace(first, replicas=(Replica((0, 1, 2)), Replica((4, 5)))),))
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"context degree: .* at least 1, got 0"):
        replace(layout, stages=(replace(first, replicas=(Replica((0, 1), 0), Replica((4,)))),))
    with pytest.raises(hetcomm.InvalidArgumentError, match="a multiple of the context degree 1"):
        replace(layout, stages=(replace(first, replicas=(Replica(()), Replica((4,)))),))
    with pytest.raises(hetcomm.InvalidArgumentError, match="one of gpipe, 1f1b"):
        replace(layout, schedule="2f2b")
    with pytest.raises(hetcomm.InvalidArgumentError, match="one with the schedule 1f1b, got 2"):
        replace(interleaved(), schedule="1f1b")
    with pytest.raises(hetcomm.InvalidArgumentError, match="one of rank, island"):
        replace(layout, weights="rack")
    with pytest.raises(hetcomm.InvalidArgumentError, match="one of the 5 ranks"):
        layout.place(5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected JSON"),
        ("[]", "expected version 1"),
        ('{"hetcomm layout": 2}', "expected version 1, got 2"),
        ('{"hetcomm layout": 1}', "layout.stages: expected a list"),
        ('{"hetcomm layout": 1, "stages": [], "depth": 3}', "got ['depth']"),
        ('{"hetcomm layout": 1, "stages": []}', "missing"),
        ('{"hetcomm layout": 1, "stages": [0]}', "layout.replicas: expected a list"),
        (
            '{"hetcomm layout": 1, "stages": [{"chunks": 3, "replicas": []}]}',
            "pairs of first and end",
        ),
        ("[" * 100_000, "expected JSON"),
        ('{"hetcomm layout": 1, "stages": [{"chunks": [[0, 1]], "replicas": [3]}]}', "a list"),
        (two_stages().text().replace('"batch": 16', '"batch": "16"'), "a whole number"),
        (
            two_stages().text().replace('"shares": []', '"shares": 3'),
            "shares: expected a list",
        ),
    ],
)
def test_a_file_without_a_layout_is_refused(text: str, message: str, tmp_path) -> None:
    (tmp_path / "layout.json").write_text(text)
    with pytest.raises(hetcomm.InvalidArgumentError, match=r"layout\.json") as caught:
        Layout.load(tmp_path / "layout.json")
    assert message in str(caught.value)


def test_a_missing_file_is_refused(tmp_path) -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match="No such file"):
        Layout.load(tmp_path / "none.json")
