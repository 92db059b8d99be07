"""SHA-256 and HMAC of the core: published vectors, and Python's over random inputs."""

from __future__ import annotations

import hashlib
import hmac
import random

import pytest

from hetcomm import _core

# NIST, "SHA-256 examples" and the million-a message of FIPS 180.
SHA256 = {
    b"": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    b"abc": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq": (
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
    ),
    b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
    b"hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu": (
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"
    ),
    b"a" * 1_000_000: "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
}
# RFC 4231, cases 1, 2, 3, 6 and 7.
HMAC = [
    (
        b"\x0b" * 20,
        b"Hi There",
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
    ),
    (
        b"Jefe",
        b"what do ya want for nothing?",
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    ),
    (
        b"\xaa" * 20,
        b"\xdd" * 50,
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
    ),
    (
        b"\xaa" * 131,
        b"Test Using Larger Than Block-Size Key - Hash Key First",
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
    ),
    (
        b"\xaa" * 131,
        b"This is a test using a larger than block-size key and a larger than block-size data. "
        b"The key needs to be hashed before being used by the HMAC algorithm.",
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2",
    ),
]


@pytest.mark.parametrize("message", SHA256, ids=lambda message: f"{len(message)}-bytes")
def test_digests_are_those_of_nist(message: bytes) -> None:
    assert _core.sha256(message).hex() == SHA256[message]


@pytest.mark.parametrize(("key", "message", "digest"), HMAC)
def test_hmacs_are_those_of_rfc_4231(key: bytes, message: bytes, digest: str) -> None:
    assert _core.hmac_sha256(key, message).hex() == digest


def test_digests_of_every_length_are_those_of_python() -> None:
    chance = random.Random(1)
    for length in range(300):
        message, key = chance.randbytes(length), chance.randbytes(chance.randrange(200))
        assert _core.sha256(message) == hashlib.sha256(message).digest()
        assert _core.hmac_sha256(key, message) == hmac.digest(key, message, "sha256")
