"""The parsers of outside bytes: samples of good inputs, the parser, and the errors it may raise."""

from __future__ import annotations

import contextlib
import struct
import tempfile
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from communicators import results_of, run_ranks
from control_peers import OpenStore, packed
from sysfs_trees import Sysfs, roce_gids

from hetcomm import _core, objects, rendezvous, store_protocol, store_server, tcp_store

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Target:
    """native: the parser is C++, so sanitizers see its mistakes."""

    name: str
    samples: Callable[[], Sequence[bytes]]
    parse: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = (_core.InvalidArgumentError,)
    native: bool = True


@cache
def values_of_set_up() -> dict[str, bytes]:
    """What ranks of two hosts write to the store."""
    shared: dict[str, bytes] = {}
    results_of(run_ranks("abab", lambda _: None, store=lambda rank: OpenStore(shared, rank)))
    return shared


def _values(stage: str, skipped: int = 0) -> list[bytes]:
    """The values of a stage of set-up, without the sign of a result."""
    found = values_of_set_up()
    return [found[key][skipped:] for key in sorted(found) if key.startswith(f"{stage}/")]


def _news() -> list[bytes]:
    call = bytes(range(1, 255))
    return [
        packed(0, 5, 2, b"all_reduce #7", b"rank 1 is gone", b""),
        packed(0, 6, 1, b"", b"ranks 0, 2 are gone", b"\x05"),
        *(packed(1, call[:size]) for size in (32, 40, 48, 56, 64, 72)),
        packed(2, 7, 0, b""),
        packed(2, 7, 1, b"refused"),
        packed(3, 7, 1, b"expected a float"),
        packed(4, b"all_reduce/20", 1, 2, 3, 4, 5),
        packed(5, 1, 2, 1, 0),
        packed(5, 2, 0, 2, 7),
        packed(6, 0, 1, 2, 0, 1, b"state of a rank"),
        packed(7, 1, 1),
        packed(8, b"198.18.1.0/24", b"198.18.1.1", b"198.18.1.2", b"eth1 is down", b"1 Gbit/s"),
        packed(9, 7, 3, b"rank 2 on red0 has not called all_reduce"),
        packed(10, 1, 7),
        packed(11, 2, 2100),
    ]


def _states() -> list[bytes]:
    """The answer of rank 1 about its pace, and one about its operations."""
    now = 10**12
    head = [4321, b"boot id time:[1]", now, 90, b""]
    call_times = [
        part for number in range(40) for part in (number, now - 10**7, 5 * 10**6, 1 << 20, 0, 7)
    ]
    messages = [2, 0, 1, 5, 1 << 20, now - 90, 2, 0, 0, 5, 1 << 20, now - 80]
    call = bytes(8) + packed(100) + bytes(8) + struct.pack("<d", 1.0) + bytes(16)
    times = [now - 10**10, now - 10**10, 2**64 - 1]
    step = [3, 2, 1, 400, now - 10**10, 2**64 - 1]
    operation = [call, 0, b"ring", 12, 0, 0, *times, 1, *step]
    return [
        packed(*head, 40, *call_times, 2, *messages, 0),
        packed(*head, 0, 0, 1, *operation),
    ]


def _member_texts() -> list[bytes]:
    return [_core.serialize(_core.probe_rank()).encode(), *_recorded_facts()]


def _recorded_facts() -> list[bytes]:
    found = []
    for member in _values("member"):
        length = int.from_bytes(member[8:16], "little")
        found.append(member[16 : 16 + length])
    return found


def _facts(data: bytes) -> None:
    info = _core.parse_rank_info(data.decode(errors="replace"))
    _core.parse_rank_info(_core.serialize(info))  # what is accepted can be written
    _core.Topology([info, info])


def _record(kind: str) -> Callable[[bytes], object]:
    return lambda data: _core.read_record(kind, data)


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode(errors="replace"))


def _profiles() -> list[bytes]:
    curve = "16=2000 1024=3000 1048576=50000"
    lines = [
        "hetcomm profile 1",
        "host name=h0 ranks=2 cores=2 nics=ethernet:125000000 bandwidth=0",
        "island members=2 ranks=2 cores=2",
        *(f"{collective.name} {curve}" for collective in _core.profiled_collectives()),
        "memory bandwidth=20000000000 step=300",
    ]
    return ["\n".join(lines).encode()]


TABLES = [
    b"all_reduce:0-4k=tree,4k-inf=hierarchical",
    b"all_reduce:0-inf=ring;broadcast:0-1M=tree",
    b"",
]


@cache
def _tree() -> Path:
    root = Path(tempfile.mkdtemp(prefix="hetcomm-fuzz-", dir="/dev/shm"))
    tree = Sysfs(root)
    tree.interface("eth0", 100_000, numa=0)
    tree.interface("bond0", 200_000)
    tree.interface("eth1", 25_000, master="bond0")
    tree.interface("ib0", kind=32, numa=1)
    tree.port("mlx5_0", "eth0", layer="Ethernet", gids=roce_gids("eth0", "198.18.0.1"))
    tree.port("mlx5_1", "ib0", rate="200 Gb/sec (4X HDR)", numa=1)
    return root


@cache
def _files() -> list[Path]:
    return sorted(path for path in _tree().rglob("*") if path.is_file())


def _sysfs_samples() -> list[bytes]:
    """The number of a file, and its content."""
    return [bytes([at]) + path.read_bytes() for at, path in enumerate(_files())]


def _probe(data: bytes) -> None:
    """Reads the tree with one file changed."""
    path = _files()[(data[0] if data else 0) % len(_files())]
    before = path.read_bytes()
    path.write_bytes(data[1:])
    try:
        machine = _core.Machine(str(_tree()), {"eth0": "198.18.0.1/24", "lo": "127.0.0.1"})
        _core.explain_nics(machine)  # chooses, explains and warns
    finally:
        path.write_bytes(before)


class Line:
    """A connection that brings these bytes and then ends."""

    def __init__(self, data: bytes) -> None:
        self.data, self.sent = data, 0

    def recv(self, most: int) -> bytes:
        part, self.data = self.data[:most], self.data[most:]
        return part

    def sendall(self, data: bytes) -> None:
        self.sent += len(data)

    def setsockopt(self, *_: object) -> None:
        pass

    settimeout = setsockopt


@cache
def _store() -> store_server.TcpStoreServer:
    return store_server.TcpStoreServer(job_key=b"")


def _serve(conversation: str) -> Callable[[bytes], object]:
    """A conversation of the store's server takes the bytes, and never waits."""

    def serve(data: bytes) -> None:
        connection = store_server.Connection(-1, None)
        taking = getattr(_store(), conversation)(connection)
        with contextlib.closing(taking), contextlib.suppress(StopIteration):
            wanted = next(taking)
            while wanted is None or wanted <= len(data):
                part, data = data[: wanted or 0], data[wanted or 0 :]
                wanted = taking.send(part)
        _store()._values.give_up(connection)

    return serve


def _requests() -> list[bytes]:
    pack = store_protocol.REQUEST.pack
    return [
        pack(b"s", 3, 5, 60.0) + b"keyvalue" + pack(b"g", 3, 0, 1.0) + b"key",
        pack(b"g", 6, 0, 0.5) + b"absent" + pack(b"d", 3, 0, 0.0) + b"key",
    ]


def _answer(data: bytes) -> None:
    client = tcp_store.TcpStore.__new__(tcp_store.TcpStore)
    client.port = 1
    tcp_store.TcpStore._answer(client, Line(data), 1000)  # type: ignore[arg-type]


def _sizes(data: bytes) -> None:
    """Sizes of objects, as other ranks announce them."""
    for size in array("q", data[: len(data) // 8 * 8]):
        objects._check_size("all_gather_object", size, 1)


def _environment(data: bytes) -> None:
    parts = data.decode(errors="replace").split("\n")
    names = ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_JOB_ID", "SLURM_STEP_NODELIST"]
    rendezvous.job_of(dict(zip(names, parts, strict=False)))


def _cluster(data: bytes) -> None:
    from hetcomm.emulate import cluster

    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(data)
        file.flush()
        cluster.load(file.name)


def _clusters() -> list[bytes]:
    return [path.read_bytes() for path in sorted(ROOT.glob("hetcomm/demo/*.toml"))] + [
        b'order = "interleaved"\n[network]\nmtu = 9000\n[[host]]\nname = "a"\nranks = 2\n'
        b'vendor = "nvidia"\ncopy_rate = "10gbit"\n[[host.nic]]\nrate = "1gbit"\nfabric = "roce"\n'
    ]


def _layouts() -> list[bytes]:
    from hetcomm.plan.layout import Layout, Replica, Stage

    stages = (
        Stage(((0, 4),), (Replica((0, 1)),)),
        Stage(((4, 8),), (Replica((2, 3)),)),
    )
    made = Layout(stages=stages, batch=8, micro_batch=1)
    return [made.text().encode()]


def _layout(data: bytes) -> None:
    from hetcomm.plan.layout import Layout

    Layout.parse(data.decode(errors="replace"))


def _layer_profile(data: bytes) -> None:
    from hetcomm.plan.profile import Profile

    Profile.parse(data.decode(errors="replace"))


def _cluster_error() -> tuple[type[Exception], ...]:
    from hetcomm.emulate.error import ClusterError

    return (ClusterError,)


def targets() -> list[Target]:
    return [
        Target("facts of a rank", _member_texts, _facts),
        Target("news", _news, _record("news")),
        Target("state of a rank", _states, _record("state of a rank")),
        Target("member", lambda: _values("member"), _record("member")),
        Target("connect info", lambda: _values("named", 1), _record("connect info")),
        Target("link offers", _offers, _record("link offers")),
        Target("link addresses", _addresses, _record("link addresses")),
        Target("greeting", lambda: [packed(1) + bytes(64)], _record("greeting")),
        Target("store value", _sealed, _record("store value")),
        Target("profile", _profiles, _text(_core.Profile)),
        Target("selection table", lambda: TABLES, _text(_core.SelectionTable)),
        Target("zones", _zones, _topology_of_zones),
        Target("codec setting", _codecs, _text(_core.is_lossless)),
        Target("sysfs tree", _sysfs_samples, _probe),
        Target("store request", _requests, _serve("_requests"), (), native=False),
        Target("store proof", _proofs, _serve("converse"), (), native=False),
        Target("store answer", _answers, _answer, (OSError, _core.TransportError), native=False),
        Target("object sizes", lambda: [bytes(16), b"\xff" * 16], _sizes, native=False),
        Target("launcher", _launchers, _environment, native=False),
        Target("cluster file", _clusters, _cluster, _cluster_error(), native=False),
        Target("layout", _layouts, _layout, native=False),
        Target("layer profile", _layer_profiles, _layer_profile, native=False),
    ]


def _offers() -> list[bytes]:
    found = []
    for result in _values("ready", 1):
        length = int.from_bytes(result[8:16], "little")
        found.append(result[16 : 16 + length])
    return found


def _addresses() -> list[bytes]:
    return [packed(b"ucx", b"address"), packed(b"ucx", b"a" * 200, b"striped", b"b" * 40)]


def _sealed() -> list[bytes]:
    return [b"hetcomm-sealed-1\n" + bytes(32) + packed(b"rank 1 on host a") + b"value", b"value"]


def _zones() -> list[bytes]:
    return [b"paris@1gbit/rack3@2.5gbit", b"a", b"a/b/c/d@250mbit", b"x@1000gbit"]


def _topology_of_zones(data: bytes) -> object:
    info = _core.RankInfo(host="a", zone=data.decode(errors="replace"))
    return _core.Topology([info])


def _codecs() -> list[bytes]:
    return [b"cluster=int8,host=bf16", b"lossless", b"topk:0.01", b"none"]


def _proofs() -> list[bytes]:
    head = store_protocol.GREETING.pack(store_protocol.MAGIC, b"rank 1 on a", b"", bytes(32))
    return [head + store_protocol.seal(b"", b"greeting", head) + bytes(32)]


def _answers() -> list[bytes]:
    pack = store_protocol.ANSWER.pack
    return [pack(b"+", 5) + b"value", pack(b"-", 0), pack(b"!", 3) + b"why"]


def _launchers() -> list[bytes]:
    return [b"1\n4\n0\n77\nnode[03-07,12],login", b"0\n1\n0\n1\na"]


def _layer_profiles() -> list[bytes]:
    from hetcomm.plan.model import Model
    from hetcomm.plan.profile import Device, Profile, Row

    rows = tuple(Row("cpu", layer, 1, 1, 0.001, 0.002) for layer in ("embedding", "block", "head"))
    made = Profile(Model(2, 8, 2, 4, 16, 32), {"cpu": Device(1e12, 1e10, 1e10)}, rows)
    return [made.text().encode()]
