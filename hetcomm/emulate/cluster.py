"""The description of a cluster: hosts, their NICs, and the placement of ranks."""

import random
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, NoReturn

from hetcomm._vendors import vendors

from .error import ClusterError

FABRICS = ("ethernet", "roce", "infiniband")
# Jumbo frames, as clusters use them: 0.7 % of the bytes are headers, not 4 % as with 1500.
DEFAULT_MTU = 9000
_CONGESTION = re.compile(r"[a-z0-9_]{1,15}")
MOST_RANKS = 131_072  # of a group
MOST_OF_HOST = 8192
MOST_HOSTS = (1 << 17) - 2  # with one NIC each
_BENCHMARKS = int(IPv4Address("198.18.0.0"))  # a /15, reserved for benchmarks
# Below 1 Mbit/s one frame takes 70 ms.
SLOWEST, FASTEST = 1_000_000, 1_000_000_000_000
GPU_VENDORS = tuple(vendors())  # emulated; any other vendor is a label
_GPU_KEYS = ("copy_rate", "copy_latency", "fault", "direct")

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_ZONE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
_ZONE = re.compile(rf"{_ZONE_NAME}(/{_ZONE_NAME}){{0,3}}")
_RATE = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)")
_UNITS = {"kbit": 1_000, "mbit": 1_000_000, "gbit": 1_000_000_000}
_ORDERS = '"block", "interleaved", "random:SEED" or a list of host names, one per rank'


@dataclass(frozen=True, slots=True)
class Nic:
    """One network port. Rates are in bits per second and per direction; None is unshaped."""

    rate_out: int | None = None
    rate_in: int | None = None
    fabric: str = "ethernet"
    numa: int = 0

    @property
    def slower(self) -> int | None:
        """The rate of the slower direction; None if no direction is shaped."""
        return min((r for r in (self.rate_out, self.rate_in) if r is not None), default=None)


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of the cluster."""

    name: str
    ranks: int
    nics: tuple[Nic, ...]
    vendor: str = "cpu"
    device: str | None = None  # the kind of each rank's device, such as "A100"; None: the vendor
    # Of emulated GPUs:
    copy_rate: int | None = None  # bits per second of a copy engine; None: as fast as memory
    copy_latency: int = 0  # microseconds of a copy before its first byte
    fault: str | None = None  # of emulated/settings.h
    direct: bool = False  # RDMA NICs and other ranks of the host reach the GPU's memory
    zone: str = ""  # "paris/rack3": the host is in zone paris, and there in zone rack3

    @property
    def kind(self) -> str:
        """The kind of device by which the planner finds the speed of a rank."""
        return self.device or self.vendor


@dataclass(frozen=True, slots=True)
class Zone:
    """Hosts behind a shared uplink. uplink: bits per second and direction between these and all
    other hosts, divided evenly among NIC indices; None is unshaped."""

    name: str  # "paris/rack3"
    uplink: int | None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts on one switch per NIC index and zone. Raises ClusterError for impossible
    hosts, zones or orders."""

    hosts: tuple[Host, ...]
    order: str | tuple[str, ...] = "block"
    mtu: int = DEFAULT_MTU
    congestion: str | None = None  # congestion control of TCP; None: see congestion.py
    zones: tuple[Zone, ...] = ()  # those with a shaped uplink
    placement: tuple[int, ...] = field(init=False, compare=False)  # [rank] -> index into hosts
    prefix: int = field(init=False, compare=False)  # bits of the network of each NIC index
    uplinks: dict[str, int | None] = field(init=False, compare=False)  # [zone]

    def __post_init__(self) -> None:
        _check_hosts(self.hosts)
        if not 1280 <= self.mtu <= 65000:
            _refuse("network.mtu", "an integer from 1280 to 65000", self.mtu, "9000 is usual")
        if self.congestion is not None and not _CONGESTION.fullmatch(self.congestion):
            expected = "the name of a congestion control, such as cubic or bbr"
            _refuse("network.congestion", expected, self.congestion, "correct it")
        _check_zones(self.hosts, self.zones)
        object.__setattr__(self, "placement", _place(self.hosts, self.order))
        prefix = 24 if len(self.hosts) <= 254 else _longest_prefix(self.hosts)
        object.__setattr__(self, "prefix", prefix)
        object.__setattr__(self, "uplinks", {zone.name: zone.uplink for zone in self.zones})

    @property
    def ranks(self) -> int:
        return len(self.placement)

    @property
    def nics(self) -> int:
        """NIC indices: the NICs of the host with the most."""
        return _most_nics(self.hosts)

    def zone_label(self, host: int) -> str:
        """The HETCOMM_ZONE of the host's ranks: "paris@1gbit/rack3"."""

        def part(zone: str) -> str:
            uplink = self.uplinks.get(zone)
            return zone.rpartition("/")[2] + (f"@{format_rate(uplink)}" if uplink else "")

        return "/".join(map(part, zones_of(self.hosts[host])))

    def subnet(self, nic: int) -> str:
        return f"{IPv4Address(self._network(nic))}/{self.prefix}"

    def address(self, host: int, nic: int) -> str:
        return str(IPv4Address(self._network(nic) + host + 1))

    def _network(self, nic: int) -> int:
        return _BENCHMARKS + (nic << 32 - self.prefix)


def zones_of(host: Host) -> list[str]:
    """ "paris/rack3" -> paris, paris/rack3."""
    names = host.zone.split("/") if host.zone else []
    return ["/".join(names[: level + 1]) for level in range(len(names))]


def load(path: str | Path, order: str | None = None) -> Cluster:
    """Reads the cluster of a TOML file. order: of ranks, instead of the file's.

    Raises ClusterError with the file and the key.
    """
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
        cluster = _cluster(document)
    except OSError as error:
        raise ClusterError(
            "file", "a readable file", str(error.strerror), "check the path", str(path)
        ) from error
    except ValueError as error:  # bad TOML or bad UTF-8
        raise ClusterError(
            "syntax", "TOML", str(error), "see https://toml.io", str(path)
        ) from error
    except ClusterError as error:
        raise error.within(str(path)) from None
    return cluster if order is None else replace(cluster, order=parse_order(order))


def parse_rate(text: Any, key: str = "rate") -> int | None:
    """`"2.5gbit"` -> 2500000000 bits per second; `"unlimited"` -> None."""
    if text == "unlimited":
        return None
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ClusterError(
            key,
            'a rate such as "1gbit", "250mbit" or "unlimited"',
            repr(text),
            "write a number directly followed by kbit, mbit or gbit, in quotes",
        )
    rate = round(float(match[1]) * _UNITS[match[2]])
    if not SLOWEST <= rate <= FASTEST:
        expected = f"a rate from {format_rate(SLOWEST)} to {format_rate(FASTEST)}"
        _refuse(key, expected, text, 'write "unlimited" for an unshaped direction')
    return rate


def format_rate(rate: int | None) -> str:
    """The inverse of parse_rate()."""
    if rate is None:
        return "unlimited"
    unit = next((u for u in ("gbit", "mbit") if rate >= _UNITS[u]), "kbit")
    return f"{rate / _UNITS[unit]:g}{unit}"


def parse_order(text: str) -> str | tuple[str, ...]:
    """The order of a command line, where commas separate the names of hosts."""
    return tuple(name.strip() for name in text.split(",")) if "," in text else text


def _refuse(key: str, expected: str, got: object, remedy: str) -> NoReturn:
    raise ClusterError(key, expected, repr(got), remedy)


def _cluster(document: dict[str, Any]) -> Cluster:
    _check_keys(document, "", {"order", "network", "host", "zone"})
    network = _typed(document, "network", dict, "", {})
    _check_keys(network, "network.", {"mtu", "congestion"})
    order = document.get("order", "block")
    if isinstance(order, list) and all(isinstance(name, str) for name in order):
        order = tuple(order)
    elif not isinstance(order, str):
        _refuse("order", _ORDERS, order, "choose one of these")
    tables = _tables(document, "host", "")
    hosts = (host for i, table in enumerate(tables) for host in _hosts(table, f"host[{i}]."))
    zones = _tables(document, "zone", "") if "zone" in document else []
    return Cluster(
        hosts=tuple(hosts),
        order=order,
        mtu=_typed(network, "mtu", int, "network.", DEFAULT_MTU),
        congestion=_typed(network, "congestion", str, "network.", None),
        zones=tuple(_zone(table, f"zone[{i}].") for i, table in enumerate(zones)),
    )


def _zone(table: dict[str, Any], at: str) -> Zone:
    _check_keys(table, at, {"name", "uplink"})
    uplink = _typed(table, "uplink", str, at)
    return Zone(_typed(table, "name", str, at), parse_rate(uplink, f"{at}uplink"))


def _hosts(table: dict[str, Any], at: str) -> list[Host]:
    """One host, or `count` equal hosts with the names NAME0, NAME1, ..."""
    host = _host(table, at)
    if "count" not in table:
        return [host]
    count = _typed(table, "count", int, at)
    if not 1 <= count <= MOST_HOSTS:
        _refuse(f"{at}count", f"1 to {MOST_HOSTS} hosts", count, "correct it, or leave it out")
    return [replace(host, name=f"{host.name}{number}") for number in range(count)]


def _host(table: dict[str, Any], at: str) -> Host:
    _check_keys(
        table, at, {"name", "count", "ranks", "vendor", "device", "nic", "zone", *_GPU_KEYS}
    )
    nics = tuple(_nic(t, f"{at}nic[{i}].") for i, t in enumerate(_tables(table, "nic", at)))
    return Host(
        name=_typed(table, "name", str, at),
        ranks=_typed(table, "ranks", int, at),
        nics=nics,
        vendor=_typed(table, "vendor", str, at, "cpu"),
        device=_typed(table, "device", str, at, None),
        copy_rate=parse_rate(table.get("copy_rate", "unlimited"), f"{at}copy_rate"),
        copy_latency=_typed(table, "copy_latency", int, at, 0),
        fault=_typed(table, "fault", str, at, None),
        direct=_typed(table, "direct", bool, at, False),
        zone=_typed(table, "zone", str, at, ""),
    )


def _nic(table: dict[str, Any], at: str) -> Nic:
    _check_keys(table, at, {"rate", "rate_out", "rate_in", "fabric", "numa"})
    one_way = [key for key in ("rate_out", "rate_in") if key in table]
    if ("rate" in table) == bool(one_way) or len(one_way) == 1:
        _refuse(
            f"{at}rate",
            "either rate, or both rate_out and rate_in",
            sorted(key for key in table if key.startswith("rate")),
            "rate holds for both directions",
        )
    out, into = one_way or ("rate", "rate")
    return Nic(
        rate_out=parse_rate(table[out], at + out),
        rate_in=parse_rate(table[into], at + into),
        fabric=_typed(table, "fabric", str, at, "ethernet"),
        numa=_typed(table, "numa", int, at, 0),
    )


def _check_keys(table: dict[str, Any], at: str, known: set[str]) -> None:
    for key in table:
        if key not in known:
            _refuse(at + key, f"one of the keys {sorted(known)}", key, "correct or delete the key")


_REQUIRED = object()
_TYPE_NAMES = {int: "an integer", str: "a string", dict: "a table", bool: "true or false"}


def _typed(table: dict[str, Any], key: str, kind: type, at: str, default: Any = _REQUIRED) -> Any:
    if key not in table:
        if default is _REQUIRED:
            raise ClusterError(at + key, _TYPE_NAMES[kind], "nothing", "add the key")
        return default
    value = table[key]
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        _refuse(at + key, _TYPE_NAMES[kind], value, "change the value's type")
    return value


def _tables(table: dict[str, Any], key: str, at: str) -> list[dict[str, Any]]:
    value = table.get(key, [])
    if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
        _refuse(at + key, f"one or more [[{key}]] tables", value, "add at least one")
    return value


def _longest_prefix(hosts: tuple[Host, ...]) -> int:
    """Of as many equal networks in 198.18.0.0/15 as a host has NICs."""
    return 15 + (_most_nics(hosts) - 1).bit_length()


def _most_nics(hosts: tuple[Host, ...]) -> int:
    return max(len(host.nics) for host in hosts)


def _check_hosts(hosts: tuple[Host, ...]) -> None:
    if not hosts:
        _refuse("host", "1 or more hosts", 0, "add a [[host]] table")
    seen: set[str] = set()
    for i, host in enumerate(hosts):
        at = f"host[{i}]."
        if not _HOST_NAME.fullmatch(host.name):
            _refuse(at + "name", "1 to 63 letters, digits, inner hyphens", host.name, "rename it")
        if host.name.lower() in seen:
            _refuse(at + "name", "a name no other host has", host.name, "rename one of them")
        seen.add(host.name.lower())
        if not 1 <= host.ranks <= MOST_OF_HOST:
            expected = f"at least 1, at most {MOST_OF_HOST}"
            _refuse(at + "ranks", expected, host.ranks, "give the host ranks or delete it")
        if host.device is not None and not host.device.strip():
            _refuse(at + "device", 'a kind of device, such as "A100"', host.device, "or delete it")
        _check_gpus(host, at)
        if not 1 <= len(host.nics) <= 16:
            _refuse(at + "nic", "1 to 16 NICs", len(host.nics), "add or delete [[host.nic]] tables")
        for j, nic in enumerate(host.nics):
            if nic.fabric not in FABRICS:
                _refuse(
                    f"{at}nic[{j}].fabric", f"one of {FABRICS}", nic.fabric, "choose one of these"
                )
            if nic.numa < -1:
                _refuse(f"{at}nic[{j}].numa", "a NUMA node, or -1", nic.numa, "correct it")
    ranks = sum(host.ranks for host in hosts)
    if ranks > MOST_RANKS:
        _refuse("host", f"at most {MOST_RANKS} ranks on all hosts", ranks, "describe fewer")
    prefix = _longest_prefix(hosts)
    most = (1 << 32 - prefix) - 2
    if len(hosts) > most:
        remedy = f"198.18.0.0/15 holds a /{prefix} for each NIC of a host"
        _refuse("host", f"1 to {most} hosts", len(hosts), remedy)


def _check_zones(hosts: tuple[Host, ...], zones: tuple[Zone, ...]) -> None:
    """A host is in one zone of each level, because the levels of its zone are parts of one text."""
    levels = len(zones_of(hosts[0]))
    for i, host in enumerate(hosts):
        expected = 'names of zones, the widest first, such as "paris/rack3"; at most 4'
        if host.zone and not _ZONE.fullmatch(host.zone):
            _refuse(f"host[{i}].zone", expected, host.zone, "use letters, digits, - _ and .")
        if len(zones_of(host)) != levels:
            expected = f'as many zones as those of host {hosts[0].name}, "{hosts[0].zone}"'
            _refuse(f"host[{i}].zone", expected, host.zone, "name a zone of every level, or none")
    known = {zone for host in hosts for zone in zones_of(host)}
    seen: set[str] = set()
    for i, zone in enumerate(zones):
        if zone.name not in known:
            _refuse(f"zone[{i}].name", "a zone of some host", zone.name, "correct or delete it")
        if zone.name in seen:
            _refuse(f"zone[{i}].name", "a zone with one uplink", zone.name, "delete one of both")
        seen.add(zone.name)


def _check_gpus(host: Host, at: str) -> None:
    for key in _GPU_KEYS:
        if getattr(host, key) and host.vendor not in GPU_VENDORS:
            _refuse(
                at + key,
                f"a host with vendor {' or '.join(GPU_VENDORS)}",
                host.vendor,
                f"delete {key} or change vendor",
            )
    if not 0 <= host.copy_latency <= 60_000_000:
        _refuse(
            at + "copy_latency", "microseconds, at most 60000000", host.copy_latency, "correct it"
        )


def _place(hosts: tuple[Host, ...], order: str | tuple[str, ...]) -> tuple[int, ...]:
    block = [i for i, host in enumerate(hosts) for _ in range(host.ranks)]
    if isinstance(order, tuple):
        return _place_by_name(hosts, order, block)
    if order == "block":
        return tuple(block)
    if order == "interleaved":  # one rank per host in turn; full hosts are left out
        turns = range(max(host.ranks for host in hosts))
        return tuple(i for turn in turns for i, host in enumerate(hosts) if turn < host.ranks)
    if re.fullmatch(r"random:\d+", order):
        random.Random(int(order.removeprefix("random:"))).shuffle(block)
        return tuple(block)
    _refuse("order", _ORDERS, order, "choose one of these")


def _place_by_name(
    hosts: tuple[Host, ...], order: tuple[str, ...], block: list[int]
) -> tuple[int, ...]:
    index: Callable[[str], int | None] = {host.name: i for i, host in enumerate(hosts)}.get
    placement = [index(name) for name in order]
    for name, place in zip(order, placement, strict=True):
        if place is None:
            _refuse("order", f"names out of {[host.name for host in hosts]}", name, "correct it")
    if sorted(p for p in placement if p is not None) != block:
        wanted = {host.name: host.ranks for host in hosts}
        got = {host.name: order.count(host.name) for host in hosts}
        _refuse("order", f"each host as often as it has ranks, {wanted}", got, "correct the list")
    return tuple(p for p in placement if p is not None)
