"""Warnings about silent ranks, which come on a busy machine, and rightly."""

from __future__ import annotations

import re


def without_silence(log: str) -> str:
    """The log without these warnings: a process that has no processor for two seconds is silent."""
    lines = log.splitlines(keepends=True)
    return "".join(line for line in lines if not re.search("signs? of life", line))
