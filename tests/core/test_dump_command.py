"""`hetcomm dump` and processes that end while the command asks."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from unittest import mock

import pytest

import hetcomm
from hetcomm import dump_command


@pytest.fixture
def ended() -> Iterator[int]:
    """A process that has ended, and is still listed."""
    process = subprocess.Popen([sys.executable, "-P", "-S", "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process.pid
    process.wait()


def test_a_process_that_ends_amid_the_question_is_an_error(ended: int) -> None:
    """The socket was still listed, and the namespaces are gone."""
    with pytest.raises(hetcomm.TransportError, match=f"process {ended}") as error:
        dump_command._connect_in(ended, "hetcomm-dump-planted")
    assert "cannot read the namespaces" in str(error.value)


# Answers at a socket with the name of another process, after it has become another user.
IMPOSTOR = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(f"\\0hetcomm-dump-{sys.argv[1]}-1")
    listener.listen()
    print(flush=True)
    with listener.accept()[0] as connection:
        connection.sendall(b"\\x1b]0;planted\\x07 planted\\n" * 3)
"""


@contextlib.contextmanager
def impostor(process: int, user: int) -> Iterator[None]:
    command = [sys.executable, "-I", "-c", IMPOSTOR, str(process), str(user)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/") as answering:
        try:
            assert answering.stdout is not None
            assert answering.stdout.readline() == b"\n"
            yield
        finally:
            answering.kill()


@pytest.fixture
def other() -> Iterator[int]:
    """A process without a socket of its own."""
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_the_socket_of_another_user_is_not_asked(other: int) -> None:
    with impostor(other, 65534), pytest.raises(hetcomm.TransportError) as error:
        dump_command.ask(other, "state")
    text = str(error.value)
    assert f"expected a socket of process {other} of user 0" in text
    assert "of user 65534" in text


def test_the_socket_of_another_process_is_not_asked(other: int) -> None:
    with impostor(other, os.getuid()), pytest.raises(hetcomm.TransportError) as error:
        dump_command.ask(other, "state")
    assert "got one with its name of process" in str(error.value)


@contextlib.contextmanager
def answering(answer: bytes, pause: float = 0.0) -> Iterator[None]:
    """This process answers so, again and again if there is a pause. The socket of its groups, which
    other tests may have left, is not asked."""
    name = f"hetcomm-dump-{os.getpid()}-planted"
    only = re.compile(r"@(hetcomm-dump-(\d+)-planted)$", re.MULTILINE)
    with (
        socket.socket(socket.AF_UNIX) as listener,
        mock.patch.object(dump_command, "_SOCKET", only),
    ):
        listener.bind(f"\0{name}")
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                connection.recv(100)
                connection.sendall(answer)
                while pause:
                    time.sleep(pause)
                    connection.sendall(b"x")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(15.0)


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_command, "_MOST", 1000)
    with answering(bytes(100_000)), pytest.raises(hetcomm.TransportError, match="at most 1000 by"):
        dump_command.ask(os.getpid(), "state")


def test_a_slow_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_command, "_ALL", 0.5)
    begin = time.monotonic()
    with answering(b"x", 0.05), pytest.raises(hetcomm.TransportError, match="in time"):
        dump_command.ask(os.getpid(), "state")
    assert time.monotonic() - begin < 5


def test_control_characters_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with answering("\x1b[2J\x1b]0;x\x07 rank\t1\r\u202e\x9b\n".encode()):
        dump_command.dump(os.getpid(), None)
    assert capsys.readouterr().out == "?[2J?]0;x? rank\t1???\n"


def test_a_page_has_only_styles_of_its_own() -> None:
    from rich.console import Console
    from rich.text import Text

    from hetcomm.pages import print_page

    console = Console(force_terminal=True, color_system="standard", width=60)
    with console.capture() as found:
        print_page(console, Text("host \x1b[2J\x1b]0;x\x7f", style="red"))
    assert found.get() == "\x1b[31mhost ?[2J?]0;x?\x1b[0m\n"
