"""`hetcomm explain` of given islands, cluster files and bad input."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hetcomm import _core
from hetcomm.cli import app


def run(*arguments: str, columns: int = 160) -> str:
    result = CliRunner().invoke(app, ["explain", *arguments], env={"COLUMNS": str(columns)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_the_page_names_the_choice_the_rejected_and_the_chunks() -> None:
    asked = ("--islands", "2+3", "--order", "interleaved", "--rank", "1", "--codec", "none")
    page = run("all_reduce", *asked)
    assert "5 ranks, 2 islands, 2 hosts" in page
    assert "all_reduce sum float32 x 4194304, codec none by hierarchical_direct" in page
    assert "rejected: needs one island; there are 2" in page
    assert "Plan of rank 1" in page and "send to rank 0 x 32 chunks" in page
    assert "16 MiB" in page  # over the bridge


def mixed_cluster(folder: Path) -> str:
    """Three islands on two hosts, two of them with devices."""
    file = folder / "cluster.toml"
    file.write_text(
        "\n".join(
            f'[[host]]\nname = "{name}"\nranks = 4\nvendor = "{vendor}"\n'
            '[[host.nic]]\nrate = "1gbit"\n'
            for name, vendor in (("first", "nvidia"), ("second", "amd"), ("third", "cpu"))
        )
    )
    return str(file)


def test_the_page_says_where_elements_are_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--topology", mixed_cluster(tmp_path), "--rank", "0", "--rank", "8")
    page = run("all_reduce", *asked, "--codec", "int8")
    assert "8 ranks encode on the device: 0, 1, 2, 3, 4, 5, 6, 7" in page
    assert "4 ranks encode on the host: 8, 9, 10, 11" in page
    assert "copy int8" in page and "output -> scratch" in page
    for codec in ("topk", "lossless"):
        page = run("all_reduce", *asked, "--codec", codec)
        assert "8 ranks encode on the device: 0, 1, 2, 3, 4, 5, 6, 7" in page
    monkeypatch.setenv("HETCOMM_KERNELS", "0")
    page = run("all_reduce", *asked, "--codec", "int8")
    assert "8 ranks encode on the host, in staging (HETCOMM_KERNELS=0): 0, 1" in page


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("collective", sorted(_core.Collective.__members__))
def test_no_terminal_width_cuts_a_word_or_a_number(
    collective: str, columns: int, tmp_path: Path
) -> None:
    if collective in ("send", "recv"):
        return
    arguments = [collective, "--topology", mixed_cluster(tmp_path), "--bytes", "16M"]
    arguments += ["--rank", "0", "--rank", "11"]
    wide, narrow = run(*arguments, columns=400), run(*arguments, columns=columns)
    assert "…" not in narrow
    assert max(map(len, narrow.splitlines())) <= columns
    assert words(narrow) == words(wide)
    for row in wide.splitlines():  # a row is a line, whatever the terminal's width
        if re.search(r"^ .*\d (us|ms|s)$", row.rstrip()):
            assert re.sub(" +", " ", row) in re.sub(" +", " ", narrow)


def words(page: str) -> list[str]:
    return re.sub("[│├└─━]+", " ", page).split()


def test_json_holds_the_predictions() -> None:
    asked = ("--bytes", "4M", "--islands", "2+2", "--codec", "none", "--json")
    found = json.loads(run("all_gather", *asked))
    assert found["islands"] == [[0, 1], [2, 3]]
    assert found["spec"]["count"] == (4 << 20) // 4 // 4
    chosen = found["choice"]["algorithm"]
    (candidate,) = [each for each in found["candidates"] if each["algorithm"] == chosen]
    assert candidate["bridge_bytes"] == 2 << 20
    assert candidate["total"] >= candidate["bridge"] >= (2 << 20) * 8
    (plan,) = found["plans"]
    assert plan["rank"] == 0
    assert max(leg["end"] for leg in plan["legs"]) <= candidate["total"]
    assert sum(leg["bytes"] for leg in plan["legs"] if leg["what"].startswith("send")) > 0


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter", "barrier"])
def test_every_collective_is_explained(collective: str) -> None:
    page = run(collective, "--islands", "1+2+1", "--bytes", "64k", "--root", "1")
    assert f"{collective}" in page and "Plan of rank 0" in page


def test_a_cluster_file_is_a_topology(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        "\n".join(
            f'[[host]]\nname = "{name}"\nranks = 2\n[[host.nic]]\nrate = "{rate}"\n'
            for name, rate in (("a", "1gbit"), ("b", "10gbit"))
        )
    )
    found = json.loads(run("all_reduce", "--topology", str(file), "--json"))
    assert [host["bandwidth"] for host in found["hosts"]] == [125_000_000, 1_250_000_000]


def test_copies_to_and_from_staging_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        "\n".join(
            f'[[host]]\nname = "{name}"\nranks = 1\nvendor = "{vendor}"\n'
            '[[host.nic]]\nrate = "1gbit"\n'
            for name, vendor in (("a", "nvidia"), ("b", "cpu"))
        )
    )
    asked = ("all_reduce", "--topology", str(file), "--codec", "none")
    page = run(*asked)
    assert "input -> staging" in page and "staging -> scratch" in page
    (candidate,) = [
        each for each in json.loads(run(*asked, "--json"))["candidates"] if not each["rejected"]
    ]
    assert candidate["staging"] >= (16 << 20) // 16


def test_a_thousand_hosts_fit_on_a_page(tmp_path: Path) -> None:
    asked = ("--islands", "900x8+100x4", "--bytes", "64M", "--rank", "7000")
    page = run("all_reduce", *asked, columns=100)
    assert len(page.splitlines()) < 80
    assert "7600 ranks, 1000 islands, 1000 hosts" in page
    assert "alike: islands 1-899" in page and "alike: islands 901-999" in page
    table = page[page.index("Plan of rank 7000") :]
    assert "busy" in table and "start" not in table  # no plans of all ranks were replayed
    found = json.loads(run("all_reduce", *asked, "--json"))
    assert not found["replayed"]
    (plan,) = found["plans"]
    assert all(leg["busy"] > 0 and leg["start"] is None for leg in plan["legs"])
    (ring,) = [one for one in found["candidates"] if one["algorithm"] == "hierarchical_ring"]
    # 64 MiB over 1 Gbit/s, out and in at once, twice: up to the headers of TCP.
    assert ring["total"] > ring["bridge"] > 0.8 * 2 * (64 << 20) * 8
    assert 0.7 * 2 * (64 << 20) < ring["bridge_bytes"] < 2 * (64 << 20)


def test_messages_with_many_peers_are_one_leg() -> None:
    page = run("all_to_all", "--islands", "18x1", "--codec", "none")
    assert "send to 17 ranks x 17 messages" in page and "recv from 17 ranks x 17" in page


def test_an_island_step_without_elements_of_the_rank_says_so(tmp_path: Path) -> None:
    asked = ("--topology", mixed_cluster(tmp_path), "--bytes", "8", "--rank", "1")
    page = run("reduce", *asked)
    assert re.search(r"island_all_to_all +0 B.*\n +no elements of this rank", page)


def test_estimates_of_all_ranks_are_no_replay(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        "".join(
            f'[[host]]\nname = "h{rate}"\nranks = 16\n[[host.nic]]\nrate = "{rate}gbit"\n'
            for rate in (1, 2, 3)
        )
    )
    found = json.loads(run("all_reduce", "--topology", str(file), "--bytes", "8", "--json"))
    assert not found["replayed"] and found["plans"][0]["legs"][0]["end"] is None


def test_some_ranks_stand_for_all_that_encode() -> None:
    page = run("all_reduce", "--islands", "17x2", "--codec", "lossless")
    assert "ranks such as these encode on the host: 0, 1, 32, 33" in page
    assert re.search(r"codec lossless, [\d.]+ MiB -> [\d.]+ MiB from the busiest host", page)


def test_the_selection_table_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETCOMM_SELECT", "all_reduce:0-inf=hierarchical_ring")
    found = json.loads(run("all_reduce", "--islands", "1+1+1+1", "--json"))
    assert found["choice"]["algorithm"] == "hierarchical_ring"
    assert "selection table" in found["choice"]["why"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all_reduc"], "collective: expected one of"),
        *(
            (["all_reduce", "--islands", sizes], f'islands of 8; got "{sizes}"')
            for sizes in ("2+x", "", "2+", "0x8", "8x0", "x8", "2x2x2", "200000x1", "-1", "٣x2")
        ),
        (["all_reduce", "--islands", "2+2", "--bandwidth", "fast"], "--bandwidth"),
        (["all_reduce", "--islands", "2+2", "--rank", "4"], "--rank: expected 0 to 3, got 4"),
        (["all_reduce", "--islands", "2", "--dtype", "float31"], "--dtype: expected one of"),
        (["all_reduce", "--islands", "2", "--topology", "x"], "one of --topology and --islands"),
        (["all_reduce", "--order", "block"], "--order needs --islands"),
        (["broadcast", "--islands", "2", "--root", "2"], "expected a root from 0 to 1"),
    ],
)
def test_bad_input_names_the_expected_input(arguments: list[str], message: str) -> None:
    with pytest.raises(_core.InvalidArgumentError) as caught:
        run(*arguments)
    assert message in str(caught.value)
