"""The memory orders in the sources suffice on weakly ordered processors, and weaker ones do not.

A model checker of C++'s memory model runs the protocols of protocols.cc with the orders that the
sources have.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import memory_model
import pytest

CORE = Path(__file__).resolve().parents[2] / "csrc"
WEAKER = {"seq_cst": ("acq_rel", "relaxed"), "release": ("relaxed",), "acquire": ("relaxed",)}

pytestmark = [pytest.mark.needs("relacy", "compiler"), pytest.mark.timeout(600)]


class Order(NamedTuple):
    """An access or fence in a source, and its memory order."""

    path: str
    pattern: str  # of the line, with the order in a group; an order left out is sequential
    weaker: tuple[str, ...]  # orders that must break the protocol

    def __str__(self) -> str:
        return self.pattern.replace("\\", "")


ORDER = r"(?:std::memory_order_(\w+))?"
LANE, DOORBELL = "island/shm/lane.cc", "island/shm/doorbell.h"
ENDED, EXECUTOR = "exec/completion.cc", "exec/executor.cc"
NO_FENCE = ("none", "acq_rel")
FENCE = r"atomic_thread_fence\(std::memory_order_(\w+)\)"
SEQUENTIAL_LOAD, SEQUENTIAL_STORE = ("acquire", "relaxed"), ("release", "relaxed")

# The orders of a protocol in the sequence in which protocols.cc takes them.
PROTOCOLS = {
    "slots": (
        Order(LANE, rf"header\.round\.store\(round \+ 1, {ORDER}\)", ("relaxed",)),
        Order(LANE, rf"header\.round\.load\({ORDER}\)", ("relaxed",)),
        Order(LANE, rf"\.finished\.store\(round \+ 1, {ORDER}\)", ("relaxed",)),
        Order(LANE, rf"\.finished\.load\({ORDER}\)", ("relaxed",)),
    ),
    "bell": (
        Order(DOORBELL, rf"void await\((?s:.)*?{FENCE}", NO_FENCE),
        Order(DOORBELL, rf"void ring\((?s:.)*?{FENCE}", NO_FENCE),
    ),
    "end": (
        Order(ENDED, rf"done_\.store\(true(?:, )?{ORDER}\)", SEQUENTIAL_STORE),
        Order("exec/completion.h", rf"done_\.load\({ORDER}\)", SEQUENTIAL_LOAD),
        Order(EXECUTOR, rf"!completed\.empty\(\) && sleepers_\.load\({ORDER}\)", SEQUENTIAL_LOAD),
    ),
    "listener": (
        Order(ENDED, rf"done_\.store\(true(?:, )?{ORDER}\)", SEQUENTIAL_STORE),
        Order(
            ENDED, rf"::when_done\((?s:.)*?watched_\.store\(true(?:, )?{ORDER}\)", SEQUENTIAL_STORE
        ),
        Order(ENDED, rf"!watched_\.load\({ORDER}\)", SEQUENTIAL_LOAD),
        Order("exec/completion.h", rf"done_\.load\({ORDER}\)", ()),  # under the mutex
    ),
    "handing": (
        Order("exec/executor.h", rf"runs_\.load\({ORDER}\)", SEQUENTIAL_LOAD),
        Order(EXECUTOR, rf"!finished && waiters_\.load\({ORDER}\)", SEQUENTIAL_LOAD),
    ),
}


def written(order: Order) -> str:
    """The order in the source."""
    found = re.findall(order.pattern, (CORE / order.path).read_text())
    assert len(found) == 1, f"expected one {order} in {order.path}; got {found}"
    return found[0] or "seq_cst"


@functools.cache
def checker(folder: Path) -> Path:
    program = folder / "protocols"
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-w", "-isystem",
               str(memory_model.headers()), str(Path(__file__).with_name("protocols.cc")),
               "-o", str(program), "-lpthread"]  # fmt: skip
    subprocess.run(command, check=True, timeout=300)
    return program


def broken(program: Path, protocol: str, orders: list[str]) -> str:
    """The history of an interleaving that breaks the protocol; "" if there is none."""
    ran = subprocess.run(
        [program, protocol, *orders], capture_output=True, text=True, timeout=200, check=False
    )
    assert ran.returncode in (0, 1), ran.stderr
    return ran.stdout if ran.returncode else ""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checker(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_written_orders_suffice(program: Path, protocol: str) -> None:
    assert not broken(program, protocol, [written(order) for order in PROTOCOLS[protocol]])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_weaker_order_breaks_the_protocol(program: Path, protocol: str) -> None:
    orders = [written(order) for order in PROTOCOLS[protocol]]
    for number, order in enumerate(PROTOCOLS[protocol]):
        for weaker in order.weaker:
            changed = [*orders[:number], weaker, *orders[number + 1 :]]
            assert broken(program, protocol, changed), f"{order} as {weaker}"
