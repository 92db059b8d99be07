"""Text of other users and hosts, made harmless for a terminal."""

from __future__ import annotations

import re

# Controls but newline and tab, and marks that change the direction of text.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    return _UNSAFE.sub("?", text)
