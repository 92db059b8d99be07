"""The memory of each rank, beside the formulas and a real model."""

from dataclasses import replace

import pytest
from planned import MODEL, layout, network
from torch import nn

from hetcomm.plan import Layout, Model, Runtime
from hetcomm.plan.prediction.memory import memory

NOTHING = Runtime(overhead_bytes={"": 0.0})


def of(layout: Layout, model: Model = MODEL, runtime: Runtime = NOTHING, per_host: int = 1) -> dict:
    count = len(layout.ranks)
    return memory(model, layout, network(count, None, per_host), runtime, ["fast"] * count)


def test_one_rank_holds_a_whole_real_model() -> None:
    h, f, v = 64, 256, 512
    blocks = (nn.TransformerEncoderLayer(h, 4, f) for _ in range(4))
    head = (nn.LayerNorm(h), nn.Linear(h, v, bias=False))
    module = nn.ModuleList([nn.Embedding(v, h), *blocks, *head])
    size = sum(each.numel() * each.element_size() for each in module.parameters())
    (found,) = of(layout((6,))).values()
    assert found.weights == size
    assert found.gradients == size
    assert found.optimizer_states == 2 * size
    assert found.buffers == 0


def test_activations_follow_the_schedule() -> None:
    block = MODEL.kept_bytes("block")
    ends = [MODEL.kept_bytes("embedding"), 0, 0, MODEL.kept_bytes("head")]
    for schedule, held in (("1f1b", (4, 3, 2, 1)), ("gpipe", (8, 8, 8, 8))):
        found = of(layout((2, 1, 1, 2), schedule=schedule))
        for s in range(4):
            assert found[s].activations == pytest.approx(held[s] * (block + ends[s]))


def test_activations_follow_the_share_of_a_replica() -> None:
    found = of(layout((6,), replicas=2, schedule="gpipe", shares=(6, 2)))
    assert found[0].activations == pytest.approx(3 * found[1].activations)


def test_recompute_keeps_inputs_of_blocks_and_works_on_one() -> None:
    plain, again = of(layout((6,)))[0], of(layout((6,), recompute=True))[0]
    ends = MODEL.kept_bytes("embedding") + MODEL.kept_bytes("head")
    assert again.activations == 4 * MODEL.output_bytes() + ends
    assert plain.activations == 4 * MODEL.kept_bytes("block") + ends
    assert again.working - plain.working == MODEL.kept_bytes("block")


@pytest.mark.parametrize(
    ("level", "share"), [("rank", 1), ("host", 2), ("island", 2), ("cluster", 8)]
)
def test_levels_divide_what_they_partition(level: str, share: int) -> None:
    whole = of(layout((6,), replicas=8), per_host=2)[0]
    for name in ("weights", "gradients", "optimizer_states"):
        parts = of(layout((6,), replicas=8, **{name: level}), per_host=2)
        for found in parts.values():
            assert getattr(found, name) == getattr(whole, name) / share
            assert found.total == pytest.approx(
                whole.total - getattr(whole, name) * (1 - 1 / share)
            )


def test_states_take_the_bytes_of_the_three_level_formula() -> None:
    """2 P / p_weights + 2 P / p_gradients + 12 P / p_states (arXiv 2501.04266)."""
    model = replace(MODEL, weight_bytes=2, gradient_bytes=2, state_bytes=12)
    plan = layout((6,), replicas=8, weights="rank", gradients="host", optimizer_states="cluster")
    for found in of(plan, model, per_host=4).values():
        states = found.weights + found.gradients + found.optimizer_states
        assert states == model.total * (2 / 1 + 2 / 4 + 12 / 8)


def test_a_tied_head_on_another_stage_has_a_copy_of_the_table() -> None:
    tied = replace(MODEL, tied=True)
    table = MODEL.vocabulary * MODEL.hidden * 4
    assert of(layout((6,)), tied)[0].weights == of(layout((6,)))[0].weights - table
    for rank in (0, 1):
        assert of(layout((3, 3)), tied)[rank].weights == of(layout((3, 3)))[rank].weights


def test_overhead_and_the_flat_copy_are_the_runtimes() -> None:
    found = of(layout((6,)), runtime=Runtime(overhead_bytes={"fast": 7e9, "": 1e9}))[0]
    assert found.overhead == 7e9
    wide = replace(MODEL, vocabulary=1 << 16, sequence=1)  # the gradients outweigh activations
    plain = of(layout((6,)), wide)[0]
    flat = of(layout((6,)), wide, replace(NOTHING, flat_gradients=True))[0]
    assert flat.total == plain.total + plain.gradients - plain.activations - plain.working


def test_tensor_ranks_share() -> None:
    whole, part = of(layout((6,)))[0], of(layout((6,), tensor=4))[0]
    assert part.weights == pytest.approx(whole.weights / 4, rel=0.02)
    ends = MODEL.kept_bytes("embedding") + MODEL.kept_bytes("head", 4)
    assert part.activations == pytest.approx(4 * MODEL.kept_bytes("block", 4) + ends)
