"""The distribution's UCX, older than the wheel's, on the loopback of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import packages

TRANSPORT = Path(__file__).resolve().parents[1] / "transport"
PROGRAM = f"""
import sys
sys.path.insert(0, {str(TRANSPORT)!r})
from hetcomm import _core
from transport_peers import finish
a, b = (
    _core.make_transport("ucx", ["lo"], rdma, shared_memory=False) for rdma in (True, False)
)
link = a.connect(b.address(False), 1)
other_end = b.connect(a.address(False), 0)
sent = [link.send(5, b"early"), link.send(6, b"later")]
finish([a, b], [*sent, b.recv(6, bytearray(5))])  # and so the first is there, too
into = bytearray(9)
request = b.recv(5, into)
finish([a, b], [request])
large = bytearray(1 << 22)  # larger than what UCX would send by rendezvous
finish([a, b], [link.send(7, bytes(range(256)) * (1 << 14)), b.recv(7, large)])
assert large == bytes(range(256)) * (1 << 14)
print(b.version)
print(request.tag, request.bytes, bytes(into[:5]))
print(link.describe())
"""


def test_an_early_message_is_received() -> None:
    image = packages.image(download=True)
    library = next((image.root / "usr/lib").glob("*/libucp.so.0"))
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env={
            **os.environ,
            "HETCOMM_UCX_LIBRARY": str(library),
            "HETCOMM_LOG_LEVEL": "info",
            "LD_LIBRARY_PATH": str(library.parent),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    version, received, carrier = done.stdout.splitlines()
    assert str(library) in version
    assert "does not take" not in done.stderr
    assert received == "5 5 b'early'"
    assert carrier == "tcp over lo"
