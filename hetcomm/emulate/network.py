"""The emulated network: bridges, veth pairs, and the kernel's token buckets.

Each NIC index has a bridge, and one for each zone. A pair joins the bridges of a zone and of the
zone around it, with the zone's uplink.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyroute2 import IPRoute

from . import congestion, kernel
from .cluster import Cluster, Nic, format_rate, zones_of
from .error import MASKED, refusal
from .result import LinkUse

FASTEST_SHAPED = 34_000_000_000  # above, the kernel's 32-bit byte rate overflows
# A host may send so long at line speed after a pause. Shorter buckets lose rate when the kernel
# wakes late (5 Gbit/s: 87 % with 0.1 ms, 99 % with 1 ms). Longer buckets let short messages exceed
# the rate by more.
BURST_SECONDS = 0.001
# A switch drops packets beyond its port's queue. A host has a longer queue, which makes its stack
# wait as a real one does: TCP may take 200 ms to send a packet again that the host itself drops.
PORT_QUEUE_SECONDS = 0.01
HOST_QUEUE_SECONDS = 0.25
SMALLEST_QUEUE = 256 * 1024
LARGEST_SEGMENT = 65536
HEADER = 64  # room for the link header, which the segment size does not count


def hardware_address(host: int, nic: int) -> str:
    """Another one for each NIC of the cluster."""
    number = (host + 1).to_bytes(3, "big")
    return bytes((2, 0, *number[:2], nic, number[2])).hex(":")  # 2: locally administered


def segment_size(nic: Nic, mtu: int) -> int:
    """The largest packet of the stack. No token bucket has to cut it."""
    if nic.slower is None:
        return LARGEST_SEGMENT
    return max(2 * mtu, min(LARGEST_SEGMENT, int(nic.slower / 8 * BURST_SECONDS)))


def note(cluster: Cluster) -> str | None:
    """The note of a run if the kernel cannot shape some NICs to their rates."""
    fast = [
        f"{host.name} eth{number}"
        for host in cluster.hosts
        for number, nic in enumerate(host.nics)
        if max(nic.rate_out or 0, nic.rate_in or 0) > FASTEST_SHAPED
    ]
    fast += [
        f"the uplink of {zone.name}"
        for zone in cluster.zones
        if (zone.uplink or 0) // cluster.nics > FASTEST_SHAPED
    ]
    if not fast:
        return None
    more = f" and {len(fast) - 8} more" if len(fast) > 8 else ""
    return (
        f"the kernel shapes rates up to {format_rate(FASTEST_SHAPED)}, so these links are as fast "
        f"as the machine: {', '.join(fast[:8])}{more}"
    )


class Network:
    """Owns the switches, in the network namespace of its creation. Used by one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.congestion = ""  # control of the hosts, known after the first attach()
        self._switch_namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._switch = IPRoute()
        self._bridges: dict[tuple[int, str], int] = {}  # [NIC, zone]; "": around all zones
        self._zones = list(dict.fromkeys(zone for host in cluster.hosts for zone in zones_of(host)))
        for nic in range(self.cluster.nics):
            for number, zone in enumerate(["", *self._zones]):
                name = f"switch{nic}" + (f"z{number - 1}" if zone else "")
                with refusal(name, "the kernel to make a bridge", _missing("bridge")):
                    self._bridges[nic, zone] = self._add_bridge(name)
                if zone:
                    self._join(nic, number - 1)

    def attach(self, index: int) -> None:
        """Connects host `index`, in the caller's network namespace, to the switches."""
        host = self.cluster.hosts[index]
        self.congestion = congestion.choose(self.cluster.congestion)
        with IPRoute() as side:
            side.link("set", index=side.link_lookup(ifname="lo")[0], state="up")
            for number, nic in enumerate(host.nics):
                name = f"{host.name} eth{number}"
                with refusal(name, "the kernel to make a veth pair", _missing("veth")):
                    inner = self._add_pair(side, index, number)
                segment = segment_size(nic, self.cluster.mtu)
                _shape(side, inner, nic.rate_out, segment, HOST_QUEUE_SECONDS, name)
                _bring_up(side, inner, f"eth{number}")
        with self._in_switch_namespace():
            for number, nic in enumerate(host.nics):
                port = self._port(index, number)
                name = f"switch port of {host.name} eth{number}"
                largest = self._largest_segment(number)
                _shape(self._switch, port, nic.rate_in, largest, PORT_QUEUE_SECONDS, name)
                self._switch.link("set", index=port, master=self._bridges[number, host.zone])
                _bring_up(self._switch, port, _port_name(index, number))

    def use(self) -> tuple[LinkUse, ...]:
        """Bytes so far on every link, as the switch counts them."""
        hosts = (
            self._use(_port_name(index, number), host.name, f"eth{number}", nic)
            for index, host in enumerate(self.cluster.hosts)
            for number, nic in enumerate(host.nics)
        )
        zones = (
            self._use(_trunk_name(index, number), f"zone {zone}", f"uplink{number}", nic)
            for index, zone in enumerate(self._zones)
            for nic in [self._uplink(zone)]
            for number in range(self.cluster.nics)
        )
        return (*hosts, *zones)

    def _use(self, port: str, host: str, name: str, nic: Nic) -> LinkUse:
        (link,) = self._switch.get_links(self._link(port))
        counters = link.get_attr("IFLA_STATS64")
        return LinkUse(
            host=host,
            nic=name,
            out_bytes=counters["rx_bytes"],  # the switch receives the bytes of the host
            in_bytes=counters["tx_bytes"],
            rate_out=nic.rate_out,
            rate_in=nic.rate_in,
        )

    def _port(self, host: int, nic: int) -> int:
        return self._link(_port_name(host, nic))

    def _link(self, name: str) -> int:
        return int(self._switch.link_lookup(ifname=name)[0])

    def _largest_segment(self, nic: int) -> int:
        """Senders cut packets for their own rates, and may be faster than a port of a switch."""
        nics = [host.nics[nic] for host in self.cluster.hosts if nic < len(host.nics)]
        return max(segment_size(each, self.cluster.mtu) for each in nics)

    def _uplink(self, zone: str) -> Nic:
        """Of each NIC index."""
        rate = self.cluster.uplinks.get(zone)
        share = None if rate is None else rate // self.cluster.nics
        return Nic(share, share)

    def _join(self, nic: int, number: int) -> None:
        """Joins the bridge of a zone to that of the zone around it. The trunk is the outer end."""
        zone = self._zones[number]
        outer, inner = _trunk_name(number, nic), f"uplink{number}n{nic}"
        sizes = {"mtu": self.cluster.mtu, "gso_max_size": LARGEST_SEGMENT}
        name = f"uplink of zone {zone}"
        with refusal(name, "the kernel to make a veth pair", _missing("veth")):
            self._switch.link(
                "add", ifname=outer, kind="veth", peer={"ifname": inner, **sizes}, **sizes
            )
        for end, bridge in ((outer, zone.rpartition("/")[0]), (inner, zone)):
            rate, largest = self._uplink(zone).rate_out, self._largest_segment(nic)
            _shape(self._switch, self._link(end), rate, largest, PORT_QUEUE_SECONDS, name)
            self._switch.link("set", index=self._link(end), master=self._bridges[nic, bridge])
            _bring_up(self._switch, self._link(end), end)

    def _add_bridge(self, name: str) -> int:
        self._switch.link(
            "add",
            ifname=name,
            kind="bridge",
            mtu=self.cluster.mtu,
            br_stp_state=0,
            br_mcast_snooping=0,
        )
        bridge = int(self._switch.link_lookup(ifname=name)[0])
        _bring_up(self._switch, bridge, name)
        return bridge

    def _add_pair(self, side: IPRoute, host: int, number: int) -> int:
        nic = self.cluster.hosts[host].nics[number]
        shared = {"mtu": self.cluster.mtu, "gso_max_size": segment_size(nic, self.cluster.mtu)}
        port = {"ifname": _port_name(host, number), "net_ns_fd": self._switch_namespace}
        side.link(
            "add",
            ifname=f"eth{number}",
            kind="veth",
            address=hardware_address(host, number),
            peer={**port, **shared},
            **shared,
        )
        inner = int(side.link_lookup(ifname=f"eth{number}")[0])
        address = self.cluster.address(host, number)
        side.addr("add", index=inner, address=address, prefixlen=self.cluster.prefix)
        return inner

    @contextmanager
    def _in_switch_namespace(self) -> Iterator[None]:
        """Files such as /proc/sys/net are those of the switches in this block."""
        host_namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        kernel.enter_namespace(self._switch_namespace)
        try:
            yield
        finally:
            kernel.enter_namespace(host_namespace)
            os.close(host_namespace)


def _port_name(host: int, nic: int) -> str:
    return f"port{host}n{nic}"


def _trunk_name(zone: int, nic: int) -> str:
    return f"trunk{zone}n{nic}"


def _bring_up(side: IPRoute, index: int, name: str) -> None:
    # Neighbour discovery of IPv6 would count as the job's traffic. The loopback keeps its ::1.
    switch = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
    if switch.exists():
        with refusal(name, "a writable /proc/sys", MASKED):
            switch.write_text("1", encoding="utf-8")
    side.link("set", index=index, state="up")


def _shape(
    side: IPRoute, index: int, rate: int | None, segment: int, queue_seconds: float, name: str
) -> None:
    if rate is None or rate > FASTEST_SHAPED:
        return
    byte_rate = rate // 8
    burst = max(segment + HEADER, int(byte_rate * BURST_SECONDS))
    # The kernel takes the burst in whole microseconds. Rounded down, no full segment would fit.
    burst += byte_rate // 1_000_000 + 1
    queue = max(SMALLEST_QUEUE, int(byte_rate * queue_seconds))
    expected = f"the kernel to shape it to {format_rate(rate)} with a token bucket (tbf)"
    with refusal(name, expected, _missing("sch_tbf")):
        side.tc("add", "tbf", index=index, rate=byte_rate, burst=burst, limit=queue)


def _missing(module: str) -> str:
    return f"the kernel needs the module {module}, and this process CAP_NET_ADMIN in its namespace"
