"""Measured figures of an automatic codec decide whether a size class keeps it."""

import random

import pytest
from generated import (
    COLLECTIVES,
    GBIT,
    describe,
    random_topology,
    topology_of,
    with_devices,
)

from hetcomm import _core
from hetcomm._core import CodecFigures, Collective, Dtype, Planner, Spec

SEED = 20261123
MIB = 1 << 20
FLOATS = (Dtype.float32, Dtype.bfloat16, Dtype.float16)
LONG = [collective for collective in COLLECTIVES if collective != Collective.barrier]
ALL_REDUCE = Spec(Collective.all_reduce, Dtype.float32, count=16 * MIB)


def figures(share: float, rate: float) -> CodecFigures:
    """share: encoded bytes for each byte; rate: bytes per second of the busiest rank."""
    plain = 100 * MIB
    return CodecFigures(
        plain=plain, encoded=int(share * plain), work=plain, time=int(plain / rate * 1e9)
    )


def planner(gbits: int = 1, codec: str = "auto") -> Planner:
    return Planner(topology_of([2, 2], gbits * GBIT), codec=codec)


@pytest.mark.parametrize(
    ("share", "rate", "pays"),
    [
        (0.85, 3e9, True),  # as assumed
        (0.4, 3e9, True),
        (0.85, 6e8, True),
        (1.0, 3e9, False),  # random bits
        (0.97, 3e9, False),
        (0.85, 5e7, False),  # a slow processor
        (0.4, 5e7, False),
        (0.4, 1e8, True),  # slow, but still faster than the network
    ],
)
def test_a_codec_stays_as_long_as_it_pays(share: float, rate: float, pays: bool) -> None:
    auto = planner()
    assert auto.choose(ALL_REDUCE).codec == "lossless"
    assert auto.codec_pays(ALL_REDUCE, figures(share, rate)) == pays


def test_a_faster_processor_than_assumed_changes_no_choice() -> None:
    """The assumed rate leaves time for other work, which no rate of the codec shows."""
    auto = planner(gbits=2)
    assert auto.codec_pays(ALL_REDUCE, figures(0.85, 6e8)) == auto.codec_pays(
        ALL_REDUCE, figures(0.85, 1e12)
    )


def test_without_figures_the_choice_stays() -> None:
    assert planner().codec_pays(ALL_REDUCE, CodecFigures())


def test_figures_of_ranks_add_up_to_bytes_and_the_busiest_rank() -> None:
    total = CodecFigures(plain=1000, encoded=500, work=3000, time=10)
    total.add(CodecFigures(plain=3000, encoded=2900, work=1000, time=1000))
    assert total.share == 850
    assert total.rate == 3000 * 1_000_000_000 // 1000


def test_equal_figures_give_equal_choices_on_every_rank_and_in_every_order_of_calls() -> None:
    specs = [
        Spec(collective, dtype, count=count)
        for collective in (Collective.all_reduce, Collective.all_gather, Collective.broadcast)
        for dtype in (Dtype.float32, Dtype.bfloat16)
        for count in (MIB // 2, 3 * MIB, 17 * MIB)
    ]
    rng = random.Random(SEED)
    measured = [figures(rng.uniform(0.3, 1), 10 ** rng.uniform(7, 10)) for _ in specs]
    found = []
    for rank in range(4):
        order = list(range(len(specs)))
        random.Random(rank).shuffle(order)
        own = planner()
        choices = {}
        for index in order:
            own.plan(specs[index], rank)
            choices[index] = own.codec_pays(specs[index], measured[index])
        found.append(choices)
    assert all(choices == found[0] for choices in found)
    assert {True, False} == set(found[0].values())


@pytest.mark.parametrize(("gbits", "priced"), [(1, "bfloat16"), (10, "bfloat16"), (100, "float32")])
def test_a_network_that_outruns_decoding_is_not_priced_with_a_codec(
    gbits: int, priced: str
) -> None:
    """Prices depend on the dtype only where a codec is a candidate."""
    auto = Planner(topology_of([4, 4], [gbits * GBIT, 200 * GBIT]), codec="auto")
    spec = Spec(Collective.all_reduce, Dtype.bfloat16, count=16 * MIB)
    assert auto.class_name(spec).startswith(f"all_reduce of {priced} from")


def test_one_size_class_has_one_name() -> None:
    auto = planner()

    def name(**changes: object) -> str:
        spec = {"dtype": Dtype.float32, "count": 16 * MIB} | changes
        return str(auto.class_name(Spec(Collective.all_reduce, **spec)))

    assert name() == name(count=16 * MIB + 1) == "all_reduce of float32 from 64 MiB"
    assert len({name(), name(count=32 * MIB), name(dtype=Dtype.bfloat16)}) == 3


@pytest.mark.parametrize("batch", range(4))
def test_the_plan_without_the_codec_has_the_same_algorithm_and_sums(batch: int) -> None:
    corrected = 0
    for number in range(40):
        seed = f"{SEED}/{batch}/{number}"
        rng = random.Random(seed)
        topology = random_topology(rng, most_ranks=12)
        if number % 2:
            topology = with_devices(rng, topology)
        auto = Planner(topology, codec="auto")
        spec = Spec(rng.choice(LONG), rng.choice(FLOATS), count=rng.randrange(100_000, 5_000_000))
        ranks = range(len(topology))
        with_codec = [auto.plan(spec, rank) for rank in ranks]
        plain = [auto.plain_plan(spec, rank) for rank in ranks]
        assert len({plan.algorithm for plan in [*with_codec, *plain]}) == 1, seed
        errors = _core.check(topology, plain)
        assert not errors, "\n".join([f"seed {seed}, {spec}:", *errors, describe(topology)])
        assert not {"encode", "decode"} & {s.kind.name for plan in plain for s in plan.steps}
        changed = [plan.steps for plan in with_codec] != [plan.steps for plan in plain]
        corrected += changed
        assert len({plan.auto_codec for plan in with_codec}) == 1
        assert not changed or with_codec[0].auto_codec
        assert not any(plan.auto_codec for plan in plain)
    assert corrected > 3


@pytest.mark.parametrize("codec", ["none", "lossless", "int8"])
def test_a_named_codec_is_not_automatic(codec: str) -> None:
    named = planner(codec=codec)
    assert not named.plan(ALL_REDUCE, 0).auto_codec
    assert named.plain_plan(ALL_REDUCE, 0).steps == named.plan(ALL_REDUCE, 0).steps
