"""The filter of UCX's TCP ports, run here as the kernel would run it."""

import ctypes
import ipaddress
import random
import socket
import struct

import pytest

from hetcomm import _core

NETWORK_HEADER = (1 << 32) - 0x100000  # SKF_NET_OFF
LOAD_WORD, LOAD_BYTE, SHIFT_RIGHT, AND, RETURN = 0x20, 0x30, 0x74, 0x54, 0x06
JUMP, EQUAL, GREATER, AT_LEAST = 0x05, 0x15, 0x25, 0x35
Code = list[tuple[int, int, int, int]]


def header(source: str) -> bytes:
    """An IP header with this source."""
    address = ipaddress.ip_address(source)
    if address.version == 4:
        return bytes([0x45, *range(1, 12)]) + address.packed + bytes(4)
    return bytes([0x60, *range(1, 8)]) + address.packed + bytes(16)


def admits(code: Code, source: str) -> bool:
    packet, at, value = header(source), 0, 0
    while True:
        kind, yes, no, k = code[at]
        at += 1
        if kind in (LOAD_WORD, LOAD_BYTE):
            place = k - NETWORK_HEADER
            value = int.from_bytes(packet[place : place + (4 if kind == LOAD_WORD else 1)], "big")
        elif kind == SHIFT_RIGHT:
            value >>= k
        elif kind == AND:
            value &= k
        elif kind == JUMP:
            at += k
        elif kind == RETURN:
            return k != 0
        else:
            taken = {EQUAL: value == k, GREATER: value > k, AT_LEAST: value >= k}[kind]
            at += yes if taken else no


def filter_of(sources: list[str], most: int = 4096) -> tuple[Code, bool]:
    code, exact = _core.source_filter(sources, most)
    assert len(code) <= most
    for at, (kind, yes, no, k) in enumerate(code):  # as the kernel demands
        if kind & 7 == 5:
            assert at + 1 + (k if kind == JUMP else max(yes, no)) < len(code)
    return code, exact


def random_address(rng: random.Random) -> str:
    if rng.random() < 0.3:
        network = rng.choice((0x20010DB8 << 96, 0xFE80 << 112))
        return str(ipaddress.IPv6Address(network | rng.choice((0, 1 << 64)) | rng.getrandbits(10)))
    network = rng.choice((0xC6120000, 0xFFFFFF00, 0))
    return str(ipaddress.IPv4Address(network | rng.getrandbits(8)))


def test_nobody_is_admitted_without_sources() -> None:
    code, exact = filter_of([])
    assert exact and not any(admits(code, source) for source in ["198.18.0.1", "::1"])


@pytest.mark.parametrize("count", [1, 2, 30, 150])
def test_only_the_sources_are_admitted(count: int) -> None:
    for seed in range(20):
        rng = random.Random(f"{count}/{seed}")
        sources = [random_address(rng) for _ in range(count)]
        code, exact = filter_of(sources)
        assert exact
        for tried in sources + [random_address(rng) for _ in range(300)]:
            assert admits(code, tried) == (tried in sources), (seed, tried)


@pytest.mark.parametrize("most", [64, 200, 4096])
def test_a_small_filter_admits_all_sources_and_few_others(most: int) -> None:
    rng = random.Random(most)
    sources = [str(ipaddress.IPv4Address(0xC6120000 | rng.getrandbits(17))) for _ in range(3000)]
    sources += [
        str(ipaddress.IPv6Address(0x20010DB8 << 96 | rng.getrandbits(90))) for _ in range(90)
    ]
    code, exact = filter_of(sources, most)
    assert not exact
    assert all(admits(code, source) for source in sources)
    assert not any(admits(code, source) for source in ["127.0.0.1", "10.0.0.1", "203.0.113.1"])


def test_prefixes_and_any() -> None:
    code, exact = filter_of(["198.18.0.0/15", "2001:db8::/32", "10.1.2.3/32"])
    assert exact
    for source in ["198.18.0.0", "198.19.255.255", "2001:db8:ffff::1", "10.1.2.3"]:
        assert admits(code, source), source
    for source in ["198.17.255.255", "198.20.0.0", "2001:db9::", "10.1.2.4", "::"]:
        assert not admits(code, source), source
    code, _ = filter_of(["any"])
    assert all(admits(code, source) for source in ["0.0.0.0", "255.255.255.255", "::", "ff::1"])


@pytest.mark.parametrize(
    "source", ["", "host", "1.2.3", "1.2.3.4/33", "::1/129", "1.2.3.4/", "::/-1"]
)
def test_what_is_no_address_is_refused(source: str) -> None:
    with pytest.raises(_core.InvalidArgumentError, match="expected an IP address, a prefix"):
        _core.source_filter([source])


def attach(listener: socket.socket, code: Code) -> None:
    instructions = b"".join(struct.pack("=HBBI", *one) for one in code)
    memory = ctypes.create_string_buffer(instructions, len(instructions))
    program = struct.pack("@HP", len(code), ctypes.addressof(memory))
    listener.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ("127.0.0.1", "127.0.0.2"),
        pytest.param("::1", "::2", marks=pytest.mark.needs("IPv6")),
    ],
)
def test_the_kernel_obeys(own: str, other: str) -> None:
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((own, 0))
        listener.listen()
        rng = random.Random(own)
        many = [random_address(rng) for _ in range(100)]
        for sources, expected in [([other, *many], False), ([own, *many], True), ([], False)]:
            attach(listener, filter_of([one for one in sources if one != own or expected])[0])
            with socket.socket(family) as one:
                one.settimeout(5.0 if expected else 0.3)
                assert (one.connect_ex(listener.getsockname()) == 0) == expected, sources[:1]
