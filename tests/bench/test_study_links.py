"""Studies measure the links between their emulated hosts."""

import abilities
import pytest
from studies.model import Layout
from studies.running import link

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("rates", ["200mbit", "100mbit+200mbit"])
def test_plain_tcp_takes_the_rate_of_each_nic(rates: str) -> None:
    abilities.need("namespaces")
    found = link(Layout("1+2", (rates,), "interleaved"))
    assert found is not None
    for bytes_per_second, rate in zip(found["bytes_per_second"], rates.split("+"), strict=True):
        wire = int(rate.removesuffix("mbit")) * 125_000
        assert 0.5 * wire < bytes_per_second < 1.1 * wire
    assert 0 < found["round_trip"] < 1
