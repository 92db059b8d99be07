"""A skip that is not listed fails the run, and so does a fully skipped folder."""

from __future__ import annotations

from pathlib import Path

import abilities
import pytest
import skips
from pytest_project import BOUND, CONFTEST, HERE, Project

RUNS = "def test_runs():\n    pass\n\n"
CARD = '@pytest.mark.needs("card")\ndef test_with_a_card():\n    raise AssertionError\n\n'
RAINY = '@pytest.mark.skip(reason="only on rainy days")\ndef test_rain():\n    pass\n\n'


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_listed_skips_are_counted(project: Project, options: tuple[str, ...]) -> None:
    project.module("mixed", RUNS + RAINY + CARD)
    project.module("cards", "import no_such_module_at_all\n")
    code, printed = project.run(*options)
    assert code == 0, printed
    assert "abilities: card: no, door: yes" in printed
    assert "ran 1 (tests/mixed 1)" in printed
    assert "skipped 1 (tests/mixed 1): only on rainy days" in printed
    assert "skipped 2 (tests/cards 1, tests/mixed 1): needs card: none is plugged" in printed
    assert "1 passed, 3 skipped in " in printed.splitlines()[-1]


TEST = "def test_it():\n    "
FIXTURE = "@pytest.fixture\ndef one():\n    pytest.skip('hm')\n\ndef test_it(one):\n    pass\n"
HM = "the reason is not listed in skips.toml: hm"
# A kind of skip, and the answer of the run.
UNLISTED = {
    "a mark": (f'@pytest.mark.skip(reason="hm")\n{TEST}pass\n', f"skipped, but {HM}"),
    "a call": (f'{TEST}pytest.skip("hm")\n', HM),
    "a fixture": (FIXTURE, HM),
    "an import": ('pytest.importorskip("no_module")\n', "could not import 'no_module'"),
    "a module": ('pytest.skip("hm", allow_module_level=True)\n', HM),
    "a failure": (f"@pytest.mark.xfail\n{TEST}assert 0\n", "not listed in skips.toml: expected to"),
    "a place": (f'@pytest.mark.needs("card")\n{TEST}pass\n', "'card' is not listed for this place"),
    "an ability that is there": (
        'def test_with_a_door():\n    pytest.skip("needs door: none")\n',
        "this machine has the ability 'door'",
    ),
    "a newer torch": (
        f'@pytest.mark.skip(reason="this torch is old")\n{TEST}pass\n',
        "the reason is listed for torch below 1.5",
    ),
}


def test_unlisted_skips_fail(project: Project) -> None:
    for number, (text, _) in enumerate(UNLISTED.values()):
        project.write(f"tests/mixed/test_{number}.py", f"import pytest\n\n{text}\n{RUNS}")
    code, printed = project.run("--continue-on-collection-errors")
    assert code != 0
    for kind, (_, words) in UNLISTED.items():
        assert words in printed, f"{kind}: {printed}"
    assert "3 failed, 7 passed, 6 errors in " in printed.splitlines()[-1]


def test_workers_fail_on_unlisted_skips_too(project: Project) -> None:
    project.module("mixed", RUNS + UNLISTED["a call"][0])
    code, printed = project.run("-n", "2")
    assert code == 1
    assert "1 failed, 1 passed in " in printed.splitlines()[-1]


def test_ignored_tests_fail_the_run(project: Project) -> None:
    project.module("mixed", RUNS)
    project.module("good", RUNS)
    project.write("tests/good/conftest.py", 'collect_ignore_glob = ["test_*.py"]\n')
    code, printed = project.run()
    assert code != 0 and "test_good.py has tests, and a conftest.py ignores them" in printed


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_a_fully_skipped_folder_fails_the_run(project: Project, options: tuple[str, ...]) -> None:
    project.module("mixed", RAINY)
    project.module("good", RUNS)
    code, printed = project.run(*options)
    assert code == 1, printed
    assert "FAILED: nothing of tests/mixed ran, which this machine could run" in printed
    assert project.run("tests/good")[0] == 0
    assert project.run("tests/good", "tests/mixed", "-k", "rain")[0] == 0  # a test chosen by hand


def test_a_failing_probe_is_an_error(project: Project) -> None:
    project.module("mixed", RUNS + CARD)
    broken = CONFTEST.replace('lambda: "none is plugged"', "lambda: 1 // 0")
    project.write("tests/conftest.py", broken)
    code, printed = project.run()
    assert code == 1 and "1 passed, 1 error in " in printed.splitlines()[-1]
    assert "abilities: card: error, door: yes" in printed
    assert "FAILED: the probe of 'card' failed" in printed and "ZeroDivisionError" in printed
    code, printed = project.run("-k", "runs")
    assert code == 1 and "1 passed, 1 deselected in " in printed.splitlines()[-1]


def test_the_list_names_abilities_that_exist(project: Project) -> None:
    project.module("mixed", RUNS)
    project.write("tests/skips.toml", '[needs]\n"window" = ["tests/*"]\n')
    code, printed = project.run()
    assert code != 0 and "neither a table nor an ability: ['window']" in printed


def test_tests_marked_alone_run_while_no_other_does(project: Project) -> None:
    """Two workers; each test notes when it begins and ends."""
    note = "import pathlib, time\nlog = pathlib.Path(__file__).with_name('log').open('a')\n"
    for number in range(12):
        mark = "@pytest.mark.alone\n" if number % 3 == 0 else ""
        body = "    print('begin', file=log, flush=True); time.sleep(0.02)\n"
        body += "    print('end', file=log, flush=True)\n"
        if mark:
            body = body.replace("'begin'", "'begin alone'").replace("'end'", "'end alone'")
        project.write(
            f"tests/mixed/test_{number}.py", f"import pytest\n{note}\n{mark}def test():\n{body}"
        )
    code, printed = project.run("-n", "2")
    assert code == 0, printed
    lines = (project.folder / "tests/mixed/log").read_text().splitlines()
    assert len(lines) == 24
    for number, line in enumerate(lines):
        if line == "begin alone":
            assert lines[number + 1] == "end alone"
            assert lines[:number].count("begin") == lines[:number].count("end")


def test_a_module_with_a_fixture_of_its_own_stays_on_one_worker(project: Project) -> None:
    made = "made = pathlib.Path(__file__).with_name('made').open('a')\n"
    fixture = "def once():\n    print('made', file=made, flush=True)\n"
    fixture = f'@pytest.fixture(scope="module")\n{fixture}'
    test = "@pytest.mark.parametrize('number', range(8))\ndef test_it(once, number):\n"
    project.module("mixed", f"import pathlib, time\n{made}{fixture}\n{test}    time.sleep(0.05)\n")
    project.module("good", RUNS)
    code, printed = project.run("-n", "2")
    assert code == 0, printed
    assert (project.folder / "tests/mixed/made").read_text() == "made\n"


def test_workers_tell_a_failure_before_the_run_ends(project: Project) -> None:
    """The other test ends once the failure was told."""
    told = project.folder / "told"
    body = f"end = time.monotonic() + {BOUND / 4}\n"
    body += f"    while not pathlib.Path({str(told)!r}).exists():\n"
    body += "        assert time.monotonic() < end, 'nothing was told'\n        time.sleep(0.01)\n"
    project.module("patient", f"import pathlib, time\n\n{TEST}{body}")
    project.module("failing", f"{TEST}raise ValueError('one\\ntwo')\n")
    lines = []

    def look(line: str) -> None:
        if line.startswith("failed: "):
            lines.append(line)
            told.touch()

    code, printed = project.run("-n", "2", on_line=look)
    assert lines == ["failed: tests/failing/test_failing.py::test_it - ValueError: one\n"], printed
    assert code == 1
    assert "1 failed, 1 passed in " in printed.splitlines()[-1]


def test_workers_tell_a_failing_import_at_once(project: Project) -> None:
    project.module("mixed", RUNS + "import no_module_at_all\n")
    printed = project.run("-n", "2")[1].splitlines()
    told = [line for line in printed if line.startswith("failed: tests/mixed/test_mixed.py - ")]
    assert len(told) == 1 and "no_module_at_all" in told[0], printed


def test_a_slow_example_is_no_failure(project: Project) -> None:
    """The default deadline of hypothesis is 0.2 s."""
    given = "import time\nfrom hypothesis import given, strategies as st\n\n@given(st.booleans())\n"
    project.module("mixed", f"{given}def test_it(chosen):\n    time.sleep(0.3)\n")
    code, printed = project.run()
    assert code == 0, printed


def test_every_entry_of_the_list_is_read() -> None:
    listed = skips.Permitted.read(HERE.parent / "skips.toml")
    assert listed.needs and listed.others and listed.folders
    assert set(listed.needs) <= set(abilities.probes)
