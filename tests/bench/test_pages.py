"""Pages show the figures of the stored results, and no other figures."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import study
from studies import draw, pages, stored
from studies.blocks import BLOCKS, missed
from studies.catalogue import STUDIES
from studies.model import Outcome, Verdict
from studies.panels import panels_of
from studies.stored import Result, collective_of, in_words, ratio_text


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the pages and the results."""
    (tmp_path / "docs").mkdir()
    for page in pages.PAGES:
        shutil.copy(pages.ROOT / page.path, tmp_path / page.path)
    shutil.copytree(stored.FOLDER, tmp_path / "results")
    return tmp_path


def faults(copy: Path) -> list[str]:
    folder = copy / "results"
    return pages.faults(pages.results_of(folder), copy, folder)


def test_pages_match_the_stored_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["docs", "--check"]) == 0, capsys.readouterr().err


def test_a_changed_result_makes_pages_and_picture_stale(copy: Path) -> None:
    assert faults(copy) == []
    file = copy / "results/overlap.json"
    told = json.loads(file.read_text())
    told["time"] = "2030-01-01T00:00:00Z"
    told["verdicts"][0] |= {"ours": 0.5, "ratio": 3.42, "met": False}
    file.write_text(json.dumps(told))
    assert faults(copy) == [
        "README.md: its figures are not those of bench/results",
        "docs/performance.md: its figures are not those of bench/results",
        "overlap.png does not show the result of 2030-01-01T00:00:00Z",
    ]
    folder = copy / "results"
    assert pages.refresh(pages.results_of(folder), copy, folder) == []
    assert "3.42 | <= 1.1, **missed**" in (copy / "docs/performance.md").read_text()
    missed = "DDP through hetcomm | 3.42 times the longer of its two parts | <= 1.1 |"
    assert missed in (copy / "docs/performance.md").read_text()


@pytest.mark.parametrize(
    "said", ["hetcomm is 4.5 times faster", "it takes 33 us", "1.5x of gloo", "0.24 % are headers"]
)
def test_a_figure_without_a_result_is_found(copy: Path, said: str) -> None:
    for page in pages.PAGES:
        file = copy / page.path
        text = file.read_text()
        place = text.index("<!-- end of figures -->") + len("<!-- end of figures -->\n")
        file.write_text(f"{text[:place]}\n    code 5 ms\n\n{said}\n{text[place:]}")
    found = faults(copy)
    assert [each.partition(": no result says")[0] for each in found] == [
        page.path for page in pages.PAGES
    ]


def test_figures_elsewhere_in_readme_are_ignored(copy: Path) -> None:
    with (copy / "README.md").open("a") as file:
        file.write("\nConnections end within 15 s.\n")
    assert faults(copy) == []


def test_an_unknown_block_is_rejected(copy: Path) -> None:
    file = copy / "README.md"
    file.write_text(file.read_text().replace("figures: overview", "figures: sideways"))
    with pytest.raises(stored.ResultError, match=r"a block out of overview, .*'sideways'"):
        faults(copy)


def test_every_block_is_on_a_page(copy: Path) -> None:
    file = copy / "docs/performance.md"
    file.write_text(file.read_text().replace("<!-- figures: staging -->", "<!-- gone -->"))
    assert "no page shows the block staging" in faults(copy)


def test_every_missed_target_has_a_row() -> None:
    results = pages.results_of()
    rows = [line.split(" | ") for line in BLOCKS["missed"](results).splitlines() if "|" in line]
    for name, result in results.items():
        for each in result.verdicts:
            if each.met is not False:
                continue
            predicted = "prediction" in each.kind
            case = "predicted times" if predicted else f"{collective_of(each.what)} "
            assert any(
                name in row[0] and case in row[2] and (predicted or in_words(each.where) == row[1])
                for row in rows
            ), f"{name}: {each.case}"


def verdict(kind: str, ratio: float, target: str = "-", met: bool | None = None) -> Verdict:
    return Verdict(kind, "2 ranks", "all_reduce 8 B", 2.0, "Open MPI 5", 4.0, ratio, target, met)


def job(opponent: str, ours: float, theirs: float) -> Outcome:
    common = {"collective": "all_reduce", "bytes": 8}
    name = opponent if opponent == "gloo" else "mpi"
    rows = [{**common, "backend": "hetcomm", "median": ours}]
    return Outcome("2 ranks", opponent, [*rows, {**common, "backend": name, "median": theirs}])


def result_of(verdicts: list[Verdict], jobs: list[Outcome]) -> Result:
    facts = {"time": "2030-01-01T00:00:00Z", "commit": "f" * 40}
    return Result("many-ranks", "command", facts, verdicts=verdicts, outcomes=jobs)


def test_pictures_divide_by_the_better_mpi() -> None:
    jobs = [job("openmpi", 2.0, 4.0), job("mpich", 3.0, 9.0), job("gloo", 2.0, 20.0)]
    (panel,) = panels_of(result_of([verdict("mpi", 2.0, ">= 2.5", False)], jobs))
    (line,) = panel.lines
    assert line.marks == pytest.approx({"hetcomm": 0.5, "openmpi": 1.0, "mpich": 1.5, "gloo": 5.0})
    assert (line.target, line.met) == (pytest.approx(0.4), False)


def test_pictures_divide_by_the_limit_if_known() -> None:
    jobs = [job("openmpi", 4.2, 6.0)]
    both = [verdict("bound", 1.05, "<= 1.1", True), verdict("mpi", 1.4)]
    (panel,) = panels_of(result_of(both, jobs))
    (line,) = panel.lines
    assert line.marks == pytest.approx({"hetcomm": 1.05, "openmpi": 1.5})
    assert line.target == pytest.approx(1.1) and "TCP" in panel.reference


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_picture(name: str) -> None:
    panels = panels_of(stored.load(name))
    assert panels and all(panel.lines for panel in panels)


def test_a_picture_names_its_result(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    assert draw.stamp_of(path) == ""
    panels = panels_of(result_of([verdict("mpi", 0.1)], [job("openmpi", 4.0, 0.4)]))
    draw.draw(path, panels, "A title.", "a machine", "a stamp")
    assert draw.stamp_of(path) == "a stamp"


def test_layouts_and_ratios_are_put_in_words() -> None:
    assert in_words("2+2+2 over 1gbit/1gbit/250mbit, block") == (
        "2+2+2 ranks over 1 Gbit/s, 1 Gbit/s, 250 Mbit/s, block"
    )
    assert in_words("2+2 over 1gbit+2gbit, block") == "2+2 ranks over 1 Gbit/s + 2 Gbit/s, block"
    assert in_words("2+2 over unlimited, block") == "2+2 ranks over an unshaped link, block"
    assert [ratio_text(each) for each in (1.0036, 0.84, 12.34, 125.8)] == [
        "1.004", "0.84", "12.3", "126",
    ]  # fmt: skip


def sized(size: str, ratio: float, target: str = ">= 1", met: bool = False) -> Verdict:
    return replace(verdict("mpi", ratio, target, met), what=f"all_reduce {size}")


def test_adjacent_sizes_share_a_row_of_missed_targets() -> None:
    found = [sized("8 B", 0.84), sized("16 B", 0.87), sized("32 B", 1.2, met=True)]
    found += [sized("64 B", 0.5), sized("128 B", 1.4, ">= 1.5")]
    found += [verdict("gloo", 5.0, ">= 30", False), verdict("prediction", 0.34, "<= 0.15", False)]
    assert missed({"many-ranks": result_of(found, [])}).splitlines()[2:] == [
        "| many-ranks | 2 ranks | all_reduce of 8 B to 16 B | 0.84 to 0.87 times as fast as the "
        "better MPI | >= 1 |",
        "| many-ranks | 2 ranks | all_reduce of 64 B | 0.50 times as fast as the better MPI | "
        ">= 1 |",
        "| many-ranks | 2 ranks | all_reduce of 128 B | 1.40 times as fast as the better MPI | "
        ">= 1.5 |",
        "| many-ranks | 2 ranks | all_reduce of 8 B | 5.00 times as fast as gloo | >= 30 |",
        "| many-ranks | all | median error of predicted times | 34% | <= 15% |",
    ]
    assert missed({"many-ranks": result_of([sized("8 B", 2.0, met=True)], [])}) == (
        "No target is missed."
    )
