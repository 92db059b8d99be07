"""A codec for each level: groups of several hosts, and of several islands on one host."""

from __future__ import annotations

import random
import re

import pytest
from generated import applicable, describe, devices, random_topology, with_devices
from rich.console import Console
from test_codec_plans import kinds
from test_lossy_plans import lossy_spec

from hetcomm import _core
from hetcomm._core import Collective, Planner, ReduceOp, Spec
from hetcomm.explain import render
from hetcomm.explain_plan import explanation

SEED = 20261123
ONE_HOST = ["a/nvidia", "a/amd", "a/nvidia", "a/amd"]
TWO_HOSTS = ["a/nvidia", "a/amd", "b/nvidia", "b/amd"]
ALL_REDUCE = Spec(Collective.all_reduce, count=1 << 20)


def topology_of(places: list[str]) -> _core.Topology:
    """An island for each vendor of each host."""
    return devices(places, kernels=True, islands="".join(place[0] for place in places))


def codecs_of(places: list[str], spec: Spec, codec: str = "none") -> set[str]:
    """The codecs of the plans' messages, which the checker proves."""
    topology = topology_of(places)
    plans = Planner(topology, codec=codec).plan_all(spec)
    assert _core.check(topology, plans) == []
    sends = [step for plan in plans for step in plan.steps if step.kind.name == "send"]
    return {step.sources[0].codec for step in sends}


@pytest.mark.parametrize(
    ("codec", "one_host", "two_hosts"),
    [
        ("int8", "none", "int8"),
        ("cluster=int8", "none", "int8"),
        ("cluster=int8,host=bf16", "bf16", "int8"),
        ("host=int4:32:bf16,cluster=none", "int4:32:bf16", "none"),
        ("host=int4", "int4", "none"),
        ("host=none", "none", "none"),
    ],
)
def test_the_widest_boundary_of_a_group_decides(codec: str, one_host: str, two_hosts: str) -> None:
    for spec, group in ((ALL_REDUCE, codec), (ALL_REDUCE.with_codec(codec), "none")):
        assert codecs_of(ONE_HOST, spec, group) == {one_host}
        assert codecs_of(TWO_HOSTS, spec, group) == {two_hosts}


def test_a_host_decides_automatically_between_hosts_alone() -> None:
    planner = Planner(topology_of(TWO_HOSTS), codec="cluster=auto,host=int8")
    assert planner.codec_of(ALL_REDUCE) == "auto"
    assert codecs_of(ONE_HOST, ALL_REDUCE, "cluster=auto,host=int8") == {"int8"}
    assert codecs_of(ONE_HOST, ALL_REDUCE, "auto") == {"none"}


def test_the_codec_of_a_host_is_for_sums_alone() -> None:
    for collective in (Collective.broadcast, Collective.all_gather, Collective.all_to_all):
        assert codecs_of(ONE_HOST, Spec(collective, count=1 << 20), "host=int8") == {"none"}
    largest = Spec(Collective.all_reduce, op=ReduceOp.max, count=1 << 20)
    assert codecs_of(ONE_HOST, largest, "host=int8") == {"none"}
    gathered = Spec(Collective.all_gather, count=1 << 20, codec="host=int8")
    assert codecs_of(ONE_HOST, gathered) == {"int8"}


@pytest.mark.parametrize("batch", range(4))
def test_every_plan_of_one_host_is_proven(batch: int) -> None:
    encoded = 0
    for number in range(30):
        seed = f"{SEED}/{batch}/{number}"
        rng = random.Random(seed)
        infos = random_topology(rng, most_ranks=16).ranks
        for info in infos:
            info.host, info.island, info.zone = "a", f"{info.host} {info.vendor}", ""
        topology = _core.Topology(infos)
        if number % 2:
            topology = with_devices(rng, topology)
        planner = Planner(topology)
        usual = lossy_spec(rng, len(topology))
        spec = usual.with_codec(f"cluster=lossless,host={usual.codec.rpartition('=')[2]}")
        for algorithm in applicable(spec, topology):
            if planner.why_not(algorithm, spec):
                continue
            plans = planner.plan_all(spec, algorithm.name)
            errors = _core.check(topology, plans)
            assert not errors, "\n".join(
                [f"seed {seed}, {spec} by {algorithm.name}:", *errors, describe(topology)]
            )
            encoded += "encode" in kinds(plans)
    assert encoded > 5


def test_a_setting_has_one_name() -> None:
    for given, name in (
        ("host=bf16,cluster=int8:256", "cluster=int8,host=bf16"),
        ("cluster=int8,host=none", "int8"),
        ("host=int8:256:bf16", "cluster=none,host=int8:bf16"),
        ("cluster=auto", "auto"),
        ("host=none", "none"),
    ):
        assert Spec(Collective.all_reduce, codec=given).codec == name
        assert Spec(Collective.all_reduce, codec=given) == Spec(Collective.all_reduce, codec=name)


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        ("rack=int8", 'levels cluster and host once each, .*; got "rack=int8"'),
        ("cluster=int8,int4", 'levels cluster and host once each, .*; got "int4"'),
        ("cluster=int8,", 'levels cluster and host once each, .*; got ""'),
        ("=int8", 'levels cluster and host once each, .*; got "=int8"'),
        ("host=int8,host=int4", 'once each, as in "cluster=int8,host=bf16"; got "host=int4"'),
        ("host=int8,cluster=none,host=int4", 'once each, .*; got "host=int4"'),
        ("host=lossless", 'none or a lossy codec for the host, .*; got "host=lossless"'),
        ("host=auto", 'none or a lossy codec for the host, .*; got "host=auto"'),
        ("host=", "unknown codec: expected one of none, auto"),
        ("host=cluster=int8", 'unknown codec: .*; got "cluster=int8"'),
        ("host=int8:100", 'codec "int8:100": expected elements with one scale'),
    ],
)
def test_impossible_levels_are_rejected(codec: str, text: str) -> None:
    with pytest.raises(_core.InvalidArgumentError, match=text):
        Spec(Collective.all_reduce, codec=codec)


def test_both_codecs_of_a_call_must_fit() -> None:
    for places in (ONE_HOST, TWO_HOSTS):
        planner = Planner(topology_of(places))
        for spec, text in (
            (Spec(Collective.all_reduce, _core.Dtype.bfloat16, count=8), "bf16 does not encode"),
            (Spec(Collective.broadcast, count=8), "lossy: expected an all_gather"),
        ):
            with pytest.raises(_core.InvalidArgumentError, match=text):
                planner.plan_all(spec.with_codec("cluster=int8,host=bf16"))


def page_of(spec: Spec) -> str:
    found = explanation(topology_of(ONE_HOST), spec, [0])
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render(found))
    return capture.get()


def test_explain_shows_the_codec_of_one_host() -> None:
    page = page_of(ALL_REDUCE.with_codec("cluster=none,host=int8"))
    assert ", int8 between islands" in page
    assert re.search(r"codec int8, \d.* -> .* between islands, predicted", page)
    page = page_of(ALL_REDUCE.with_codec("int8"))
    assert "codec int8 encodes nothing: all ranks are on one host" in page
    assert "encodes nothing" not in page_of(ALL_REDUCE.with_codec("lossless"))
