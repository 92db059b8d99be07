"""The text of a cluster file: the inverse of `load()`."""

from __future__ import annotations

from collections.abc import Iterator
from json import dumps

from .cluster import DEFAULT_MTU, Cluster, Host, Nic, format_rate


def text(cluster: Cluster) -> str:
    """TOML that load() reads as an equal cluster, with rates of six digits."""
    return "\n".join(_lines(cluster)) + "\n"


def _lines(cluster: Cluster) -> Iterator[str]:
    order = cluster.order
    yield f"order = {dumps(order if isinstance(order, str) else list(order))}"
    network: dict[str, object] = {"mtu": cluster.mtu} if cluster.mtu != DEFAULT_MTU else {}
    network |= {"congestion": cluster.congestion} if cluster.congestion else {}
    yield from _table("[network]", network)
    for zone in cluster.zones:
        yield from _table("\n[[zone]]", {"name": zone.name, "uplink": format_rate(zone.uplink)})
    for host in cluster.hosts:
        yield from _table("\n[[host]]", _host(host))
        for nic in host.nics:
            yield from _table("[[host.nic]]", _nic(nic))


def _table(header: str, values: dict[str, object]) -> Iterator[str]:
    """JSON's strings, integers and booleans are TOML's too."""
    if values:
        yield header
        yield from (f"{key} = {dumps(value)}" for key, value in values.items())


def _host(host: Host) -> dict[str, object]:
    given: dict[str, object] = {"device": host.device, "fault": host.fault}
    if host.copy_rate is not None:
        given["copy_rate"] = format_rate(host.copy_rate)
    given |= {"copy_latency": host.copy_latency, "direct": host.direct, "zone": host.zone}
    always = {"name": host.name, "ranks": host.ranks, "vendor": host.vendor}
    return always | {key: value for key, value in given.items() if value}


def _nic(nic: Nic) -> dict[str, object]:
    out, into = format_rate(nic.rate_out), format_rate(nic.rate_in)
    rates = {"rate": out} if out == into else {"rate_out": out, "rate_in": into}
    return {**rates, "fabric": nic.fabric, "numa": nic.numa}
