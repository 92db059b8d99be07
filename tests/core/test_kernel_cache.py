"""Compiled kernels on disk: later processes read these, and nobody else's or damaged ones."""

from __future__ import annotations

import os
import struct
from functools import reduce
from pathlib import Path

import pytest

from hetcomm import _core

pytestmark = pytest.mark.needs("NVRTC")

KERNEL = "reduce_kernel<hetcomm::float32, hetcomm::Op::sum>"
MARKER = b"code that no compiler makes"


def fnv1a(data: bytes) -> int:
    basis, prime = 0xCBF29CE484222325, 0x100000001B3
    return reduce(lambda value, byte: (value ^ byte) * prime % 2**64, data, basis)


def text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def marked(record: bytes) -> bytes:
    """The record with other code."""
    (length,) = struct.unpack_from("<Q", record)
    end = 8 + length
    (symbol,) = struct.unpack_from("<Q", record, end)
    kept = record[: end + 8 + symbol]
    return kept + text(MARKER) + struct.pack("<Q", fnv1a(MARKER))


def compiled(architecture: str = "sm_90") -> tuple[bytes, str]:
    found: tuple[bytes, str] = _core.cached_kernel("nvidia", architecture, KERNEL)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HETCOMM_KERNEL_CACHE", str(tmp_path / "a" / "b"))
    return tmp_path / "a" / "b"


def test_a_kernel_is_compiled_once(folder: Path) -> None:
    code, symbol = compiled()
    assert code[:4] == b"\x7fELF" and symbol.encode() in code
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(marked(file.read_bytes()))
    assert compiled() == (MARKER, symbol)
    assert compiled("sm_80")[0][:4] == b"\x7fELF"
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("damage", ["changed", "short", "empty", "other key", "long"])
def test_a_damaged_file_is_written_anew(folder: Path, damage: str) -> None:
    compiled()
    (file,) = folder.iterdir()
    whole = marked(file.read_bytes())
    middle = len(whole) // 2
    file.write_bytes({
        "changed": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "short": whole[:-9],
        "empty": b"",
        "other key": whole[:8] + b"?" + whole[9:],
        "long": whole + b"?",
    }[damage])  # fmt: skip
    code, _ = compiled()
    assert code[:4] == b"\x7fELF"  # of a compilation, each of which has bits of its own
    assert compiled()[0] == code


def test_a_file_that_others_can_write_does_not_count(folder: Path) -> None:
    compiled()
    (file,) = folder.iterdir()
    file.write_bytes(marked(file.read_bytes()))
    assert compiled()[0] == MARKER
    file.chmod(0o620)
    assert compiled()[0] != MARKER


def test_a_folder_that_cannot_be_made_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HETCOMM_KERNEL_CACHE", str(tmp_path / "file" / "below"))
    assert compiled()[0][:4] == b"\x7fELF"


def test_a_kernel_cache_of_0_keeps_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETCOMM_KERNEL_CACHE", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled()[0]
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv("HETCOMM_KERNEL_CACHE")
    assert compiled()[0]
    assert len(list((tmp_path / "hetcomm" / "kernels").iterdir())) == 1


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_file_is_not_opened(folder: Path, kind: str) -> None:
    """A pipe without a writer would block for ever."""
    compiled()
    (file,) = folder.iterdir()
    planted = folder.parent / "planted"
    planted.write_bytes(marked(file.read_bytes()))
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to(planted)
    else:
        file.mkdir()
    assert compiled()[0][:4] == b"\x7fELF"
    assert file.is_dir() == (kind == "folder") and not file.is_symlink()
    assert MARKER in planted.read_bytes()


def test_an_enormous_file_does_not_count(folder: Path) -> None:
    compiled()
    (file,) = folder.iterdir()
    os.truncate(file, 1 << 40)  # sparse
    assert compiled()[0][:4] == b"\x7fELF"
    assert file.stat().st_size < 1 << 20


def test_a_folder_that_others_can_write_does_not_count(folder: Path) -> None:
    compiled()
    assert folder.stat().st_mode & 0o777 == 0o700
    (file,) = folder.iterdir()
    file.write_bytes(marked(file.read_bytes()))
    folder.chmod(0o770)
    assert compiled()[0] != MARKER
    folder.chmod(0o700)
    assert compiled()[0] == MARKER


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a folder of another user")
def test_a_folder_of_another_user_does_not_count(folder: Path) -> None:
    compiled()
    (file,) = folder.iterdir()
    file.write_bytes(marked(file.read_bytes()))
    os.chown(folder, 65534, 65534)
    assert compiled()[0] != MARKER
