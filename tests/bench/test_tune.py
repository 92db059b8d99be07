"""`hetcomm tune` as a user runs it, and the use of its profile."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from benching import BOUND, CLUSTER, bench, environment
from typer.testing import CliRunner
from undisturbed import undisturbed

from hetcomm import _core
from hetcomm.cli import app
from hetcomm.store_server import TcpStoreServer
from hetcomm.tune.links import rounds_of, sizes_of
from hetcomm.tune.profile import Measured

TUNE = (sys.executable, "-P", "-m", "hetcomm", "tune")
QUICK = ("--sizes", "64,64k", "--seconds", "0.001", "--timeout", "30")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of 2 ranks of this host."""
    file = tmp_path_factory.mktemp("tuned") / "two.profile"
    done = bench(file, "--ranks", 2, *QUICK, command=TUNE)
    assert done.returncode == 0, done.stderr
    assert "Island of 2, of 2 ranks" in done.stdout and f"HETCOMM_PROFILE={file}" in done.stdout
    return file


def _outputs(program: str, settings: Sequence[dict[str, str]]) -> list[str]:
    """The output of each rank of a program that finds its rank in R and a store at PORT."""
    server = TcpStoreServer()
    try:
        processes = [
            subprocess.Popen(
                [sys.executable, "-P", "-c", program],
                env=environment(PORT=str(server.port), R=str(rank), **each),
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, each in enumerate(settings)
        ]
        return [process.communicate(timeout=BOUND)[0] for process in processes]
    finally:
        server.close()


def test_the_file_holds_the_measurements(tuned: Path) -> None:
    profile = _core.Profile(tuned.read_text(), str(tuned))
    assert str(profile) == tuned.read_text()
    ((members, ranks, cores, curves),) = profile.islands
    assert (members, ranks, cores) == (2, 2, _core.probe_rank().cores)
    assert sorted(curves) == sorted(each.name for each in _core.profiled_collectives())
    for curve in curves.values():
        assert [size for size, _ in curve] == [64, 64 << 10]
        assert all(time > 0 for _, time in curve)
    assert profile.memory_bandwidth > 0 and profile.messages == {}
    assert [(host.ranks, host.bandwidth) for host in profile.hosts] == [(2, 0)]


def test_bench_and_explain_predict_from_the_profile(tuned: Path) -> None:
    profile = _core.Profile(tuned.read_text())
    (expected,) = (time for size, time in profile.islands[0][3]["all_reduce"] if size == 64)
    options = ("--ranks", 2, "--sizes", "64", "--iterations", 3, "--json")
    found = json.loads(bench(*options, HETCOMM_PROFILE=str(tuned)).stdout)
    assert found["rows"][0]["predicted"]["total"] * 1e9 == pytest.approx(expected)
    # The processors of this machine are those of the profile. Its links do not matter to an island.
    nics = profile.hosts[0].nics
    rate = nics.partition(":")[2] if nics.startswith("ethernet:") and "," not in nics else ""
    if not rate:
        pytest.skip(f"--islands describes hosts of one Ethernet port, not {nics}")
    arguments = [
        "explain",
        "all_reduce",
        "--islands",
        "2",
        "--bandwidth",
        f"{int(rate) // 125}kbit",
    ]
    given = CliRunner().invoke(
        app, [*arguments, "--bytes", "64", "--profile", str(tuned), "--json"]
    )
    assert given.exit_code == 0, given.output
    assert json.loads(given.output)["candidates"][0]["total"] == expected


def test_a_profile_of_fewer_ranks_is_rejected_by_every_rank(tuned: Path) -> None:
    done = bench("--ranks", 3, "--sizes", "64", "--iterations", 3, HETCOMM_PROFILE=str(tuned))
    assert done.returncode == 2
    assert "the profile is of another topology: expected 1 hosts" in done.stderr
    assert "has 3 ranks on" in done.stderr and "run hetcomm tune" in done.stderr


def test_ranks_with_unlike_profiles_are_named(tuned: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.profile"
    other.write_text(tuned.read_text().replace(" step=", " step=1"))
    program = (
        "import os, hetcomm; store = hetcomm.TcpStore('127.0.0.1', int(os.environ['PORT']), 30)\n"
        "rank = int(os.environ['R'])\n"
        "try: hetcomm.Communicator(store, rank, 3, timeout=30)\n"
        "except hetcomm.Error as error: print(error)"
    )
    said = _outputs(program, ({"HETCOMM_PROFILE": str(tuned)}, {"HETCOMM_PROFILE": str(other)}, {}))
    mine, theirs = (_core.Profile(file.read_text()).digest() for file in (tuned, other))
    for text in said:
        assert "HETCOMM_PROFILE differs: rank 0 has" in text
        assert f"rank 0 has {mine}, rank 1 has {theirs}, rank 2 has none" in text
        assert "give every rank the same file" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--sizes", "64"), "--sizes: expected at least 2"),
        (("--sizes", "1,8", "--ranks", "2"), "--sizes: expected two sizes of at least 8 bytes"),
        (("--sizes", "100,104", "--ranks", "2"), "--sizes: expected two sizes of at least 8 bytes"),
        (("missing/my.profile",), "expected an existing folder"),
        (("--ranks", "1"), "expected at least 2 ranks, got 1"),
        (("--ranks", "2", "--cluster", "some.toml"), "expected one of --ranks and --cluster"),
    ],
)
def test_unmeasurable_input_is_rejected(arguments: tuple[str, ...], said: str) -> None:
    done = bench(*arguments, command=TUNE)
    assert done.returncode == 2 and said in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "which cannot be read"), ("hetcomm profile 1\nhost 3\n", "line 2: expected 6 words")],
)
def test_a_bad_file_is_rejected(text: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.profile"
    if text is not None:
        file.write_text(text)
    done = bench("--ranks", 2, "--sizes", "64", HETCOMM_PROFILE=str(file))
    assert done.returncode == 2 and said in done.stderr and str(file) in done.stderr


@pytest.mark.parametrize("hosts", range(1, 12))
def test_rounds_pair_every_host_with_every_other(hosts: int) -> None:
    rounds = rounds_of(hosts)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == [(a, b) for a in range(hosts) for b in range(a + 1, hosts)]
    for pairs in rounds:
        busy = [host for pair in pairs for host in pair]
        assert len(set(busy)) == len(busy)


def test_a_slow_link_counts_only_for_its_host() -> None:
    ranks = [_core.RankInfo(host=name, host_name=name) for name in "abc"]
    measured = Measured(_core.Topology(ranks))
    measured.memory([1e9] * 3, [1e-7] * 3)
    for pair, bandwidth in (((0, 1), 10**9), ((0, 2), 10**8), ((1, 2), 10**8)):
        turns = [size * 1e9 / bandwidth * 1e-9 for size in (8, 64)]
        measured.link(pair, bandwidth, [(8, 2e-5 + turns[0]), (64, 1.9e-5 + turns[1])])
    profile = _core.Profile(measured.text())
    assert [host.bandwidth for host in profile.hosts] == [10**9, 10**9, 10**8]
    # A longer time for fewer bytes was disturbed. A reduction, steps, and the gap between the two
    # messages of a rank are not the link's time.
    ((less, small), (more, large)) = profile.messages["ethernet"]
    gap = _core.CostParameters().message_gap_tcp
    assert (less, more) == (8, 64) and 18_000 < small + gap <= large + gap < 19_700


@pytest.mark.parametrize("ranks", [1, 2, 128])
@pytest.mark.parametrize("sizes", [(1 << 20, 4 << 20), (1024, 4096, 16384, 65536), (64, 128)])
def test_messages_of_two_hosts_make_a_curve(ranks: int, sizes: tuple[int, ...]) -> None:
    facts = [_core.RankInfo(host=host, host_name=host) for host in "ab" for _ in range(ranks)]
    measured = Measured(_core.Topology(facts))
    everybody = range(2 * ranks)
    found = sizes_of(measured, everybody, sizes)
    assert {size for size in sizes if size <= 64 << 10} <= set(found)
    assert len({measured.sent(everybody, size) for size in found}) > 1


def test_every_rank_hears_of_a_missing_profile_at_once() -> None:
    program = (
        "import os, hetcomm; from hetcomm import _core\n"
        "from hetcomm.bench.control import ControlChannel\n"
        "from hetcomm.tune.command import settings_of; from hetcomm.tune.measure import run\n"
        "from hetcomm.tune.profile import Measured\n"
        "def text(self): raise _core.InvalidArgumentError('too little for a profile')\n"
        "Measured.text = text\n"
        "store = hetcomm.TcpStore('127.0.0.1', int(os.environ['PORT']), 30)\n"
        "control = ControlChannel(store, int(os.environ['R']), 2, 30)\n"
        "try: run(settings_of('64,4k', 0.001, 30), control, lambda event: None)\n"
        "except hetcomm.Error as error: print(type(error).__name__, error)"
    )
    for text in _outputs(program, [{}, {}]):
        assert text == "InvalidArgumentError too little for a profile\n"


@pytest.mark.needs("namespaces")
def test_links_of_an_emulated_cluster_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "cluster.profile"

    def measured() -> _core.Profile:
        done = bench(file, "--cluster", CLUSTER, *QUICK, command=TUNE)
        assert done.returncode == 0, done.stderr
        profile = _core.Profile(file.read_text())
        assert all(host.bandwidth > 0 for host in profile.hosts)
        return profile

    def is_right(profile: _core.Profile) -> bool:
        rate = int(profile.hosts[0].nics.partition(":")[2])
        # The burst of the bucket comes on top.
        return all(host.bandwidth <= 1.2 * rate for host in profile.hosts)

    # Data that come while the receiver has no processor seem faster than the link.
    profile = undisturbed(measured, is_right, times=3)
    smallest, largest = profile.messages["ethernet"]  # of all_reduces of 64 B and 64 KiB
    assert smallest[0] <= 64 < 1024 < largest[0] <= 64 << 10
    arguments = ["explain", "all_reduce", "--topology", str(CLUSTER), "--profile", str(file)]
    given = CliRunner().invoke(app, [*arguments, "--bytes", "64", "--json"])
    assert given.exit_code == 0, given.output
    assert json.loads(given.output)["candidates"][0]["rejected"] != ""
