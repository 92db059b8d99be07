"""torchrun restarts a job after a rank has died, and the job continues from its checkpoint.

The new attempt finds the store as the old attempt left it.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import crashing_trainer
import elastic
import pytest
from preloaded import stand_in
from torch.distributed import HashStore, TCPStore

import hetcomm
from hetcomm import _attempts

PROGRAM = Path(crashing_trainer.__file__)
BOUND = 150.0  # seconds; the job takes a tenth of this


def segments() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("hetcomm")}


def reference() -> list[float]:
    """The losses of one process with whole batches."""
    model, optimizer = elastic.model_and_optimizer()
    losses = []
    for step in range(elastic.STEPS):
        loss = elastic.loss_of(model, step, 0, 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def torchrun(folder: Path, host: str, *options: str) -> subprocess.Popen[bytes]:
    command = [stand_in(), "-m", "torch.distributed.run", "--max-restarts=1", *options]
    environment = {**os.environ, "HETCOMM_HOST_ID": host, "PYTHON_EXEC": stand_in()}
    with (folder / f"{host}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, str(PROGRAM), str(folder)], stdout=log, stderr=log, env=environment
        )


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_is_restarted_after_a_crash(tmp_path: Path, nodes: int) -> None:
    before = segments()
    options = ["--standalone", "--nproc-per-node=2"]
    if nodes == 2:
        # The test holds the agents' store, so that its port is free by construction.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        options = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=elastic"]
        options += [f"--rdzv-endpoint=127.0.0.1:{store.port}", "--rdzv-conf=is_host=false"]
        options += ["--local-addr=127.0.0.1"]
    agents = [torchrun(tmp_path, f"elastic-{node}", *options) for node in range(nodes)]
    end = time.monotonic() + BOUND
    try:
        codes = [agent.wait(max(end - time.monotonic(), 0)) for agent in agents]
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.terminate()  # torchrun then ends its workers
                agent.wait(60)
    logs = "\n".join(log.read_text(errors="replace")[-6000:] for log in tmp_path.glob("*.log"))
    assert codes == [0] * nodes, logs
    assert (tmp_path / "crashed").exists()
    for rank in range(2):
        report = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert report["losses"] == pytest.approx(reference(), rel=1e-5)
        assert report["began"] == crashing_trainer.CRASH, "the checkpoint was not used"
        assert report["backend"] == "hetcomm"
    left = segments() - before
    while left and time.monotonic() < end:  # processes of jobs beside this one end soon
        time.sleep(0.1)
        left &= segments()
    assert not left


def test_no_rank_uses_leftovers_of_an_earlier_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts of several sizes with one store. In one attempt a rank is missing."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    store, names = HashStore(), set()
    for attempt, (size, absent) in enumerate([(3, None), (3, 2), (4, None), (2, None), (3, 0)]):
        barrier = threading.Barrier(size - (absent is not None))

        def join(
            rank: int, size: int = size, absent: int | None = absent, attempt: int = attempt,
            barrier: threading.Barrier = barrier,
        ) -> str:  # fmt: skip
            timeout = 60.0 if absent is None else 3.0
            fresh = _attempts.store_of_attempt(store, rank, size, timeout, "test")
            fresh.set(f"attempt of {rank}", str(attempt))
            barrier.wait(60)
            found = [fresh.get(f"attempt of {other}").decode() for other in range(size)]
            assert found == [str(attempt)] * size
            return found[0]

        with ThreadPoolExecutor(size) as ranks:
            pending = {r: ranks.submit(join, r) for r in range(size) if r != absent}
            if absent is None:
                names |= {each.result(60) for each in pending.values()}
                continue
            barrier.abort()
            failures = {r: each.exception(60) for r, each in pending.items()}
        waiting = 0 if absent else 1
        assert isinstance(failures[waiting], hetcomm.TimeoutError)
        assert f"rank {absent} of {size} did not come" in str(failures[waiting])
    assert names == {"0", "2", "3"}


class _LateOnceHeard:
    """A store and a clock. The clock stands still until rank 0 has seen the answer of rank 1, then
    it passes every deadline."""

    def __init__(self) -> None:
        self.store, self.heard = HashStore(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def check(self, keys: list[str]) -> bool:
        found = self.store.check(keys)
        if found and keys[0].startswith("heard/") and keys[0].endswith("/1"):
            self.heard.set()
        return found

    def monotonic(self) -> float:
        return 1000.0 * self.heard.is_set()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def test_every_rank_names_the_missing_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that rank 0 had seen name the missing rank, too."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    store = _LateOnceHeard()
    monkeypatch.setattr(_attempts, "time", store)
    with ThreadPoolExecutor(2) as ranks:
        pending = [
            ranks.submit(_attempts.store_of_attempt, store, rank, 3, 60.0, "test")
            for rank in (0, 1)
        ]
        for one in pending:
            with pytest.raises(hetcomm.TimeoutError, match="rank 2 of 3 did not come"):
                one.result(60)


def test_without_torchrun_the_store_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    store = HashStore()
    assert _attempts.store_of_attempt(store, 0, 2, 1.0, "test") is store
