"""Ranks go on in their processes after a death, and take a replacement in."""

from __future__ import annotations

import json
import os
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import rejoin
import rejoining_worker
from preloaded import stand_in
from torch.distributed import HashStore, TCPStore

WORKERS, STEPS, KILLED, JOINED = 3, 12, 4, 8
BOUND = 240.0  # seconds; the job takes a tenth of this on an idle machine


def reference() -> list[float]:
    """The losses of one process with whole batches."""
    trainer, losses = rejoin.Trainer(), []
    for step in range(STEPS):
        loss = rejoin.loss_of(trainer.model, rejoin.batch(step), 1)
        trainer.optimizer.zero_grad()
        loss.backward()
        trainer.optimizer.step()
        losses.append(loss.item())
    return losses


def worker(port: int, folder: Path, name: str, host: str) -> subprocess.Popen[bytes]:
    program = Path(rejoining_worker.__file__)
    numbers = map(str, (port, WORKERS, STEPS, KILLED, JOINED))
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [stand_in(), "-P", str(program), *numbers, str(folder), name],
            stdout=log,
            stderr=log,
            env={**os.environ, "HETCOMM_HOST_ID": f"rejoin-{host}"},
        )


def test_survivors_go_on_and_take_a_replacement(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    places = {"first": "a", "victim": "a", "second": "b"}
    running = {name: worker(store.port, tmp_path, name, host) for name, host in places.items()}
    end = time.monotonic() + BOUND
    try:
        assert running["victim"].wait(BOUND) == -9
        store.wait(["2/size"], timedelta(seconds=BOUND / 2))  # the others form a generation
        running["replacement"] = worker(store.port, tmp_path, "replacement", "a")
        names = ("first", "second", "replacement")
        codes = [running[name].wait(max(end - time.monotonic(), 0)) for name in names]
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    logs = "\n".join(log.read_text(errors="replace")[-4000:] for log in tmp_path.glob("*.log"))
    assert codes == [0, 0, 0], logs
    reports = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in names}
    for report in reports.values():
        assert report["losses"] == pytest.approx(reference(), rel=1e-5)
    # The step of the death was repeated by two ranks, and the last steps have three again.
    assert reports["first"]["begun"].count(KILLED) == 2
    before, after = reports["first"]["begun"].index(KILLED), reports["first"]["begun"][::-1]
    assert reports["first"]["sizes"][: before + 2] == [3] * (before + 1) + [2]
    assert reports["first"]["sizes"][-1] == 3 and after[0] == STEPS - 1
    assert reports["replacement"]["begun"][0] > KILLED, "the replacement did not catch up"
    assert "rank " in (tmp_path / "first.log").read_text(), "no error named the dead rank"


def generation(store: Any, last: int) -> rejoin.Generations:
    found = rejoin.Generations(store, 3)
    found.last = last
    return found


def test_a_minority_forms_no_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank of three must not train beside the others."""
    monkeypatch.setattr(rejoin, "PATIENCE", 0.0)
    monkeypatch.setattr(rejoin, "TIMEOUT", 2.0)
    store = HashStore()
    store.set("1/size", "3")
    with pytest.raises(TimeoutError, match=r"more than half of the 3 ranks before.*got 1"):
        generation(store, 1).join()
    with pytest.raises(TimeoutError, match="generation 1: expected 3 ranks"):
        generation(HashStore(), 0).join()


def test_a_late_rank_waits_for_the_next_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejoin, "PATIENCE", 0.0)
    monkeypatch.setattr(rejoin, "TIMEOUT", 2.0)
    store = HashStore()
    store.set("1/size", "1")
    assert generation(store, 1).join() == (0, 1)
    newcomer = generation(store, 0)
    with pytest.raises(TimeoutError, match="generation 3"):
        newcomer.join()
    assert generation(store, 2).wanted()
