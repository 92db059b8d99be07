"""Random topologies, specs and plans, each a pure function of a random.Random."""

import random
from collections.abc import Container, Iterator

from hetcomm import _core

COLLECTIVES = [c for c in _core.Collective.__members__.values() if c.name not in ("send", "recv")]
IN_PLACE = ("all_reduce", "reduce", "broadcast")
GBIT = 125_000_000  # bytes per second

BANDWIDTHS = (0, GBIT // 10, GBIT, 10 * GBIT, 25 * GBIT, 100 * GBIT)
FABRICS = ("ethernet", "roce", "infiniband")


def topology_of(
    sizes: list[int],
    bandwidth: int | list[int] = GBIT,
    order: str = "block",
    cores: int = 64,
    fabric: str = "ethernet",
) -> _core.Topology:
    """One island for each size, each on a host of its own. `bandwidth` is one for all hosts, or one
    for each. `order` is block or interleaved."""
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]
    if order == "interleaved":
        turns = range(max(sizes))
        hosts = [host for turn in turns for host, size in enumerate(sizes) if turn < size]
    of = bandwidth if isinstance(bandwidth, list) else [bandwidth] * len(sizes)
    return _core.Topology([_info(f"h{host}", "cpu", of[host], cores, fabric) for host in hosts])


def random_topology(rng: random.Random, most_ranks: int = 64) -> _core.Topology:
    """1 to 8 islands in any order, some on one host, some in zones. Most are small, and all have up
    to `most_ranks`."""
    size = rng.choice((rng.randint(1, 6), rng.randint(1, 12), rng.randint(1, 24), most_ranks))
    size = min(rng.randint(1, size) if size == most_ranks else size, most_ranks)
    islands = min(size, rng.randint(1, 8))
    members = list(range(islands)) + [rng.randrange(islands) for _ in range(size - islands)]
    if rng.random() < 0.7:
        rng.shuffle(members)
    else:
        members.sort()
    places, used = [], set[tuple[str, str]]()
    while len(places) < islands:
        place = (f"h{rng.randrange(islands)}", rng.choice(("cpu", "nvidia", "amd")))
        if place not in used:
            used.add(place)
            places.append(place)
    bandwidths = {host: rng.choice(BANDWIDTHS) for host, _ in places}
    cores = {host: rng.choice((1, 2, 8, 64)) for host, _ in places}
    same = rng.random() < 0.4
    infos = []
    for island in members:
        host, vendor = places[island]
        bandwidth = bandwidths[places[0][0] if same else host]
        infos.append(_info(host, vendor, bandwidth, cores[host], rng.choice(FABRICS)))
    topology = _core.Topology(infos)
    return with_zones(rng, topology) if rng.random() < 0.3 else topology


def with_devices(rng: random.Random, topology: _core.Topology) -> _core.Topology:
    """The same ranks with some islands in device memory: staged, direct, with kernels or
    without."""
    infos = topology.ranks
    memories = (_core.Memory.host, _core.Memory.device, _core.Memory.device, _core.Memory.device)
    for members in topology.islands:
        memory, kernels = rng.choice(memories), rng.random() < 0.5
        direct = random_direct(rng)
        for rank in members if memory != _core.Memory.host else []:
            infos[rank].memory = memory
            infos[rank].kernels = kernels
            infos[rank].direct = direct if rng.random() < 0.8 else random_direct(rng)
            infos[rank].direct_bytes = (0, 0, 5000, 1 << 20)[(rank + len(infos)) % 4]
            infos[rank].vendor = infos[rank].vendor.replace("cpu", "nvidia2")
    return _core.Topology(infos)


def with_zones(rng: random.Random, topology: _core.Topology) -> _core.Topology:
    """The same ranks in one to three levels of zones, some with a slow uplink."""
    infos = topology.ranks
    paths: list[list[str]] = [[] for _ in topology.hosts]
    for _ in range(rng.randint(1, 3)):
        rates: dict[str, str] = {}
        for path in paths:
            name = f"z{rng.randrange(rng.choice((1, 2, 3)))}"
            rate = rates.setdefault("/".join([*path, name]), rng.choice(("", "@100mbit", "@2gbit")))
            path.append(name + rate)
    for host, members in enumerate(topology.hosts):
        for rank in members:
            infos[rank].zone = "/".join(paths[host])
    return _core.Topology(infos)


def random_direct(rng: random.Random) -> set[_core.Fabric]:
    """The fabrics over which a rank's memory is sent directly: mostly none or all."""
    everything = {_core.Fabric.shm, _core.Fabric.infiniband, _core.Fabric.roce}
    some = {fabric for fabric in everything if rng.random() < 0.5}
    return rng.choice((set(), some, everything))


def devices(
    hosts: list[str],
    bandwidth: int = GBIT,
    fabric: str = "ethernet",
    kernels: bool = False,
    direct: Container[str] = (),
    islands: str = "",
    direct_bytes: int = 0,
) -> _core.Topology:
    """One rank for each "host/vendor". Vendor cpu has host memory, every other vendor device
    memory.

    direct: places whose memory is sent directly over RDMA and in its host. islands: a letter each.
    """
    infos = []
    for rank, place in enumerate(hosts):
        host, vendor = place.split("/")
        info = _info(host, vendor, bandwidth, 64, fabric)
        if vendor != "cpu":
            info.memory, info.kernels = _core.Memory.device, kernels
            info.island = f"{vendor} {islands[rank]}" if islands else ""
            if place in direct:
                info.direct = {_core.Fabric.shm, _core.Fabric.infiniband, _core.Fabric.roce}
                info.direct_bytes = direct_bytes
        infos.append(info)
    return _core.Topology(infos)


def random_spec(rng: random.Random, collective: _core.Collective, size: int) -> _core.Spec:
    """Counts of all kinds: zero, fewer elements than ranks, odd ones, and enough for chunks."""
    scales = [0, 4, 64, 64, 4096, 100_000, 400_000]
    if size <= 16 or rng.random() < 0.1:
        scales.append(3_000_000)
    whole = collective.name in IN_PLACE
    count = rng.randint(0, rng.choice(scales)) // (1 if whole or rng.random() < 0.1 else size)
    splits = []
    if collective.name == "all_to_all" and rng.random() < 0.6:
        count, splits = 0, [rng.choice((0, 1, rng.randint(0, 5000))) for _ in range(size * size)]
    ops = [_core.ReduceOp.sum, _core.ReduceOp.max]
    dtype = rng.choice(
        (_core.Dtype.float32, _core.Dtype.bfloat16, _core.Dtype.float64, _core.Dtype.int8)
    )
    if dtype != _core.Dtype.int8:
        ops += [_core.ReduceOp.average, _core.ReduceOp.premul_sum]
    op = rng.choice(ops)
    return _core.Spec(
        collective,
        dtype,
        op,
        root=rng.randrange(size),
        count=0 if collective.name == "barrier" else count,
        in_place=collective.name in IN_PLACE and rng.random() < 0.5,
        splits=splits,
        factor=rng.choice((0.5, -3.0, 1.0)) if op == _core.ReduceOp.premul_sum else 1,
    )


def applicable(spec: _core.Spec, topology: _core.Topology) -> Iterator[_core.Algorithm]:
    for algorithm in _core.algorithms():
        if algorithm.collective == spec.collective and not algorithm.why_not(topology, spec):
            yield algorithm


def describe(topology: _core.Topology) -> str:
    """The facts from which the topology can be made again, one rank per line."""
    return "\n".join(
        f"  {rank}: {info.host} {info.vendor} {info.memory.name} kernels={info.kernels} "
        f"direct={[fabric.name for fabric in sorted(info.direct, key=int)]} "
        f"from {info.direct_bytes} B in a host "
        f"cores={info.cores} "
        f"{info.nics[0].bandwidth} B/s {info.nics[0].fabric.name} zone={info.zone}"
        for rank, info in enumerate(topology.ranks)
    )


def _info(host: str, vendor: str, bandwidth: int, cores: int, fabric: str) -> _core.RankInfo:
    nic = _core.Nic(
        name="eth0",
        interface="eth0",
        fabric=_core.fabric_from_name(fabric),
        bandwidth=bandwidth,
        bandwidth_known=bandwidth > 0,
    )
    return _core.RankInfo(host=host, host_name=host, vendor=vendor, cores=cores, nics=[nic])
