"""All-reduce over a slow bridge: hetcomm against gloo and against the link's own limit.

Emulates two islands joined by a shaped link, and in one run measures the rate of plain TCP over
that link (both directions at once), then all_reduce through hetcomm and through gloo in turn. Bytes
over the bridge come from the NICs' own counters.

    python bench/bridge.py [--ranks 2+2] [--rate 1gbit] [--bytes 16M] [--output FILE]

With --vendors nvidia,amd the hosts' ranks live on emulated accelerators, whose copy engines run at
--copy-rate: how well copies hide behind the wire.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

FLOAT32 = 4


def nic_bytes() -> tuple[int, int]:
    """Bytes that this host's NICs received and sent so far."""
    received = sent = 0
    for line in Path("/proc/self/net/dev").read_text().splitlines()[2:]:
        name, counters = line.split(":")
        if name.strip() != "lo":
            fields = counters.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def tcp_rate(peer: str, listen: bool, total: int) -> float:
    """Bytes per second and direction of plain TCP when both directions are busy."""
    if listen:
        with socket.create_server(("", 29700)) as server:
            connection, _ = server.accept()
    else:
        deadline = time.monotonic() + 10
        while True:
            try:
                connection = socket.create_connection((peer, 29700), timeout=10)
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
    connection.settimeout(60)
    chunk = bytes(1 << 20)

    def send() -> None:
        for _ in range(total // len(chunk)):
            connection.sendall(chunk)

    start = time.perf_counter()
    sender = threading.Thread(target=send)
    sender.start()
    got = 0
    while got < total // len(chunk) * len(chunk):
        got += len(connection.recv(1 << 20))
    elapsed = time.perf_counter() - start
    sender.join()
    connection.close()
    return got / elapsed


def rank_main(arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    import hetcomm  # noqa: F401

    dist.init_process_group("hetcomm")
    gloo = dist.new_group(backend="gloo")
    rank = dist.get_rank()
    hosts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, os.environ["HETCOMM_EMULATED_HOST"])
    first, second = hosts.index(hosts[0]), next(i for i, h in enumerate(hosts) if h != hosts[0])
    address = socket.gethostbyname(hosts[first])
    dist.barrier()
    rates = [0.0]
    if rank in (first, second):
        rates[0] = tcp_rate(address, rank == first, 32 << 20)
    dist.broadcast_object_list(rates, first)
    tensor = torch.ones(arguments.bytes // FLOAT32)
    result: dict[str, object] = {"tcp_bytes_per_second": rates[0]}
    for group in (None, gloo):
        dist.all_reduce(tensor, group=group)
    seconds: dict[str, list[float]] = {"hetcomm": [], "gloo": []}
    moved: dict[str, list[tuple[int, int]]] = {"hetcomm": [], "gloo": []}
    for _ in range(arguments.repeats):
        for name, group in (("hetcomm", None), ("gloo", gloo)):
            tensor.fill_(1.0)
            dist.barrier()
            before, start = nic_bytes(), time.perf_counter()
            dist.all_reduce(tensor, group=group)
            seconds[name].append(time.perf_counter() - start)
            dist.barrier()
            after = nic_bytes()
            moved[name].append((after[0] - before[0], after[1] - before[1]))
            if not bool((tensor == dist.get_world_size()).all()):
                raise SystemExit(f"{name}: wrong result")
    if rank == 0:
        for name in seconds:
            result[name] = {
                "median_seconds": statistics.median(seconds[name]),
                "seconds": seconds[name],
                "bytes_in_out": [
                    statistics.median(part) for part in zip(*moved[name], strict=True)
                ],
            }
        Path(arguments.result).write_text(json.dumps(result))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2+2")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--bytes", default="16M")
    parser.add_argument("--order", default="block,interleaved")
    parser.add_argument("--vendors", default="cpu", help="of the hosts in turn")
    parser.add_argument("--copy-rate", help="of each emulated accelerator and direction")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    units = {"k": 1 << 10, "M": 1 << 20}
    text = arguments.bytes
    arguments.bytes = int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)
    if arguments.result:
        return rank_main(arguments)

    from hetcomm.demo.machine import describe_machine
    from hetcomm.emulate import load, run

    report: dict[str, object] = {"machine": describe_machine(), "bytes": arguments.bytes}
    report |= {name: getattr(arguments, name) for name in ("ranks", "rate", "vendors", "copy_rate")}
    for order in arguments.order.split(","):
        with tempfile.TemporaryDirectory() as folder:
            cluster = Path(folder) / "cluster.toml"
            vendors = arguments.vendors.split(",")
            copies = f'copy_rate = "{arguments.copy_rate}"\n' if arguments.copy_rate else ""
            hosts = [
                f'[[host]]\nname = "{chr(97 + i)}"\nranks = {n}\n'
                f'vendor = "{vendors[i % len(vendors)]}"\n{copies}'
                f'[[host.nic]]\nrate = "{arguments.rate}"\n'
                for i, n in enumerate(arguments.ranks.split("+"))
            ]
            cluster.write_text(f'order = "{order}"\n' + "".join(hosts))
            output = Path(folder) / "result.json"
            command = [sys.executable, __file__, "--result", str(output), "--bytes"]
            command += [str(arguments.bytes), "--repeats", str(arguments.repeats)]
            done = run(load(cluster), command, timeout=300)
            if not done.ok:
                raise SystemExit(done.verdict())
            measured = json.loads(output.read_text())
        limit = arguments.bytes / measured["tcp_bytes_per_second"]
        ours, gloo = measured["hetcomm"]["median_seconds"], measured["gloo"]["median_seconds"]
        bridge = max(measured["hetcomm"]["bytes_in_out"]) / arguments.bytes
        report[order] = measured
        print(
            f"{arguments.ranks} {order:<12} {text}: link limit {limit * 1e3:7.1f} ms  "
            f"hetcomm {ours * 1e3:7.1f} ms ({ours / limit:.3f} x limit)  gloo {gloo * 1e3:7.1f} ms "
            f"({gloo / ours:.2f} x hetcomm)  bytes over the bridge {bridge:.3f} x the tensor"
        )
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
