"""The job key: where it comes from, and groups of ranks with equal, different and no keys."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from communicators import Call, results_of, run_ranks
from control_peers import OpenStore, contact_of, group_key_of, unpacked
from typer.testing import CliRunner

from hetcomm import _core
from hetcomm._core import Collective, Communicator, Spec
from hetcomm.cli import app
from hetcomm.job_key import FILE, KEY

KEYS = ["0123456789abcdef" * 4, "fedcba9876543210" * 4]


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    monkeypatch.delenv(FILE, raising=False)


def all_reduce(communicator: Communicator) -> None:
    Call(communicator, Spec(Collective.all_reduce, count=8), 0, True).check()


def test_without_a_setting_there_is_no_key() -> None:
    assert _core.job_key() == b""


def test_the_command_writes_a_key_that_ranks_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    told = CliRunner().invoke(app, ["key", str(file)])
    assert told.exit_code == 0 and told.output == f"export {FILE}={file}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.setenv(FILE, str(file))
    assert re.fullmatch(rb"[0-9a-f]{64}", _core.job_key())
    again = CliRunner().invoke(app, ["key", str(file)])
    assert again.exit_code == 2 and "File exists" in again.output


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o666])
def test_a_file_that_others_may_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    file = tmp_path / "key"
    file.write_text(KEYS[0])
    file.chmod(mode)
    monkeypatch.setenv(FILE, str(file))
    with pytest.raises(_core.InvalidArgumentError, match=f"got mode {mode:o}; chmod 600"):
        _core.job_key()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "No such file or directory; make one with hetcomm key"),
        ("", "expected a key of 16 to 4096 bytes, got 0"),
        ("short\n", "expected a key of 16 to 4096 bytes, got 5"),
        ("x" * 5000, "expected a key of 16 to 4096 bytes, got more"),
    ],
)
def test_a_file_without_a_key_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, text: str
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
        file.chmod(0o600)
    monkeypatch.setenv(FILE, str(file))
    with pytest.raises(_core.InvalidArgumentError, match=text):
        _core.job_key()


def test_a_folder_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe"):
        monkeypatch.setenv(FILE, str(path))
        with pytest.raises(_core.InvalidArgumentError, match="expected a file; got something"):
            _core.job_key()


def test_two_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, KEYS[0])
    monkeypatch.setenv(FILE, "/nowhere")
    with pytest.raises(_core.InvalidArgumentError, match="got both; unset one"):
        _core.job_key()


def test_a_group_with_a_key_seals_all_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, KEYS[0])
    shared: dict[str, bytes] = {}
    results_of(run_ranks("abb", all_reduce, store=lambda rank: OpenStore(shared, rank)))
    assert all(value.startswith(b"hetcomm-sealed-1\n") for value in shared.values()), shared
    assert not any(KEYS[0].encode() in value for value in shared.values())


Change = Callable[[str, bytes], bytes]


def flipped(place: int) -> Change:
    def change(key: str, value: bytes) -> bytes:
        at = place % len(value)
        return value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]

    return change


CHANGES: dict[str, Change] = {
    "a-bit-of-the-value": flipped(-1),
    "a-bit-of-the-seal": flipped(20),
    "without-a-seal": lambda key, value: value[17 + 32 :],
    "cut": lambda key, value: value[:30],
    "empty": lambda key, value: b"",
}


@pytest.mark.parametrize("stage", ["member/1", "named/1", "ready/1"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_value_of_the_store_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: str, stage: str
) -> None:
    monkeypatch.setenv(KEY, KEYS[0])
    shared: dict[str, bytes] = {}

    def tampered(rank: int, key: str, value: bytes) -> bytes:
        return CHANGES[change](key, value) if (rank, key) == (0, stage) else value

    results = run_ranks(
        "ab", all_reduce, store=lambda rank: OpenStore(shared, rank, tampered), timeout=8.0
    )
    assert isinstance(results[0], _core.InvalidArgumentError), results
    assert f'"{stage}"' in str(results[0]) and results[0].peer == 1, results[0]
    assert "HETCOMM_JOB_KEY_FILE" in str(results[0])


def test_an_old_value_of_another_set_up_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes to the store may set a rank's record of an earlier job with the same key."""
    monkeypatch.setenv(KEY, KEYS[0])
    earlier: dict[str, bytes] = {}
    results_of(run_ranks("ab", all_reduce, store=lambda rank: OpenStore(earlier, rank)))

    def replayed(rank: int, key: str, value: bytes) -> bytes:
        return earlier[key] if (rank, key) == (0, "member/1") else value

    shared: dict[str, bytes] = {}
    results = run_ranks(
        "ab", all_reduce, store=lambda rank: OpenStore(shared, rank, replayed), timeout=8.0
    )
    assert all(isinstance(result, _core.Error) for result in results), results


def test_who_reads_the_store_cannot_pass_for_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the job key the store's words make another key."""
    monkeypatch.setenv(KEY, KEYS[0])
    shared: dict[str, bytes] = {}
    results_of(run_ranks("ab", all_reduce, store=lambda rank: OpenStore(shared, rank)))
    opened = {key: value_of(value) for key, value in shared.items()}
    assert contact_of(opened["member/0"])[1] > 0
    assert group_key_of(opened) != group_key_of(opened, KEYS[0].encode())


def value_of(sealed: bytes) -> bytes:
    rest = sealed[len(b"hetcomm-sealed-1\n") + 32 :]
    origin = unpacked(rest, "t")[0]
    assert isinstance(origin, bytes) and re.fullmatch(rb"rank \d on host \S+", origin)
    return rest[8 + len(origin) :]
