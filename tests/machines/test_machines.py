"""hetcomm on unlike machines: it works, or its error names the cause and the remedy."""

import json
import subprocess
from pathlib import Path

import pytest
from ports import free_port
from preloaded import stand_in
from unlike_machines import CHECKS, MACHINES

HERE = Path(__file__).parent
FORBIDDEN = ("Operation not permitted", "No space left", "not implemented", "Permission denied")


@pytest.mark.parametrize("name", MACHINES)
def test_each_machine_works_or_gets_a_reason(name: str, tmp_path: Path) -> None:
    machine = MACHINES[name]
    ports = [str(free_port()), str(free_port())]
    command = [stand_in(), str(HERE / "become.py"), name, str(tmp_path), *ports]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    tried = json.loads((tmp_path / "tried.json").read_text())
    refusal = tried.get("become")
    if refusal and machine.needs and any(words in refusal for words in FORBIDDEN):
        pytest.skip(f"needs {machine.needs}: {refusal}")
    assert refusal is None
    assert machine.facts.items() <= json.loads((tmp_path / "facts.json").read_text()).items()
    checks = ["topo", *["emulate"] * machine.emulates]
    checks += list(CHECKS) * machine.has_ranks
    assert sorted(tried) == sorted(checks)
    for check, error in tried.items():
        words = machine.fails.get(check)
        if error is None:
            assert words is None, f"{check} works"
        elif words is None:
            pytest.fail(f"{check}: {error}")
        else:
            assert all(word in error for word in words), f"{check}: {error}"
            assert "Traceback" not in error
    for check, words in machine.says.items():
        output = (tmp_path / f"{check}.log").read_text()
        assert all(word in output for word in words), output
