"""What the client and the server of hetcomm's own store send each other.

The client speaks first: a greeting, which takes the job key. The server answers with its challenge
and its proof, and the client sends its own proof. Requests follow. All seals cover the greeting.
"""

from __future__ import annotations

import hmac
import struct

# A greeting: what it is, the names of the client and of its job, and the client's challenge. Its
# seal follows.
GREETING = struct.Struct("!16s128s64s32s")
MAGIC = b"hetcomm store 2\n"
CHALLENGE_BYTES = SEAL_BYTES = 32
PROOF_SECONDS = 10.0  # for a client to prove the key, and for the server to answer
SAME_KEY = "give every rank of the job the same HETCOMM_JOB_KEY_FILE"
# A request: operation, lengths of key and value, bound in seconds, key, value. An answer: sign,
# length, value. There is none to DELETE.
REQUEST, ANSWER = struct.Struct("!cIId"), struct.Struct("!cI")
SET, GET, DELETE = b"s", b"g", b"d"
WILL = b"w"  # a key to set if the connection ends before a will without a value
FOUND, EXPIRED, REFUSED = b"+", b"-", b"!"
LONGEST_KEY, LONGEST = 64 << 10, 64 << 20  # bytes of a key, of a value


def seal(key: bytes, role: bytes, words: bytes) -> bytes:
    return hmac.digest(key, b"hetcomm store " + role + b"\0" + words, "sha256")
