"""The codecs' device kernels without a device, run as plain C++ by kernel_shim.py.

Results must have the bits of the host's codecs, which test_codecs and test_lossless compare with an
oracle.
"""

from __future__ import annotations

from collections.abc import Iterator

import float_oracle
import numpy as np
import pytest
from codec_inputs import kinds
from float_oracle import at_offset, encode
from kernel_shim import CODED, DTYPES, LOSSLESS, SEED, SPARSE, Run, address

from hetcomm import _core

pytestmark = pytest.mark.timeout(900)  # the first test compiles all kernels
HEADER = 64  # bytes of encoded memory before the data
STORED = 16 + 3 * 2 + 1  # the byte of lossless data of three blocks that names their streams
MOST = 5000  # elements


def coded(
    codec: str, dtype: str, generator: np.random.Generator
) -> Iterator[tuple[str, np.ndarray, int, int]]:
    """Elements of every class of bits, in numbers from 0 to 5000: edges of groups and blocks, and
    others at random; with the count of elements and the bytes that the codec makes of them."""
    edges = (0, 1, 31, 33, 255, 257, 2047, 2048, 2049, 4096)
    chosen = [(count, 2) for count in (*edges, *generator.integers(2, MOST, 6))]
    for count, number in [*chosen, (MOST, len(kinds(dtype, generator, 1)))]:
        made = kinds(dtype, generator, int(count))
        for name in generator.choice(list(made), number, replace=False):
            length = _core.codec_capacity(codec, DTYPES[dtype], int(count))
            yield f"seed {SEED}: {count} {name}", made[name], int(count), length


@pytest.mark.parametrize(("codec", "dtype"), CODED)
def test_encode_has_the_bits_of_the_host(run: Run, codec: str, dtype: str) -> None:
    generator = np.random.default_rng(SEED)
    kind, size = DTYPES[dtype], DTYPES[dtype].size
    for note, raw, count, length in coded(codec, dtype, generator):
        kept = float_oracle.encode("float32", generator.normal(0, 1e-3, count)).view(np.float32)
        for offset, residual in [(0, None), (size, None), (0, kept), (4, kept)]:
            want = np.empty(length, np.uint8)
            lost = None if residual is None else residual.copy()
            _core.codec_encode(codec, kind, want, raw, lost)
            encoded = at_offset(np.full(HEADER + length + 16, 0xA5, np.uint8), 0)
            source = at_offset(raw, offset)
            own = at_offset(kept.view(np.uint8), offset)
            places = (address(encoded), address(source), 0 if residual is None else address(own))
            for launch in _core.encode_launches(codec, kind, *places, count):
                run(launch)
            np.testing.assert_array_equal(encoded[HEADER : HEADER + length], want, note)
            assert (encoded[:HEADER] == 0xA5).all() and (encoded[HEADER + length :] == 0xA5).all()
            if lost is not None:
                np.testing.assert_array_equal(own, lost.view(np.uint8), note)


@pytest.mark.parametrize(("codec", "dtype"), CODED)
def test_decode_has_the_bits_of_the_host(run: Run, codec: str, dtype: str) -> None:
    generator = np.random.default_rng(SEED)
    kind, size = DTYPES[dtype], DTYPES[dtype].size
    for note, raw, count, length in coded(codec, dtype, generator):
        parts = []
        for part in (raw, np.roll(raw, size), raw):
            parts.append(at_offset(np.empty(HEADER + length, np.uint8), 0))
            _core.codec_encode(codec, kind, parts[-1][HEADER:], part)
        start = next(iter(kinds(dtype, generator, count).values()))
        for used, first, offset in [(1, False, 0), (3, False, size), (1, True, 0), (2, True, size)]:
            target = at_offset(start, offset)
            want = target.copy()
            data = [part[HEADER:] for part in parts[:used]]
            _core.codec_sum(codec, kind, want, want if first else None, data)
            plain = address(target) if first else 0
            sources = [address(part) for part in parts[:used]]
            run(_core.decode_launch(codec, kind, address(target), plain, sources, count))
            np.testing.assert_array_equal(target, want, f"{note} from {used} {first}")


@pytest.mark.parametrize(("codec", "dtype"), [(c, d) for c, d in CODED if c in SPARSE])
def test_places_that_no_encoder_made_give_nans(run: Run, codec: str, dtype: str) -> None:
    """The host refuses the same bytes. Blocks that did not change keep their values."""
    generator = np.random.default_rng(SEED)
    kind, size = DTYPES[dtype], DTYPES[dtype].size
    refused = 0
    for count in (1, 65, 2048, 2500):
        raw = float_oracle.ordinary_raw(dtype, count, generator)
        length = _core.codec_capacity(codec, kind, count)
        encoded = at_offset(np.empty(HEADER + length, np.uint8), 0)
        _core.codec_encode(codec, kind, encoded[HEADER:], raw)
        for _ in range(10):
            changed = encoded.copy()
            begin = HEADER + int(generator.integers(0, length))
            part = changed[begin : begin + 8]
            part[:] = generator.integers(0, 256, part.size, np.uint8)
            placed = at_offset(changed, 0)
            got, want = np.empty(count * size, np.uint8), np.empty(count * size, np.uint8)
            run(_core.decode_launch(codec, kind, address(got), 0, [address(placed)], count))
            try:
                _core.codec_sum(codec, kind, want, None, [placed[HEADER:]])
            except _core.TransportError:
                refused += 1
                assert np.isnan(float_oracle.decode(dtype, got)).any()
            else:
                np.testing.assert_array_equal(got, want)
    assert refused > 0 or codec == "topk:1"


def shrunk(dtype: str, count: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Elements of every class of bits, and blocks of several classes one after the other."""
    made = kinds(dtype, generator, count)
    yield from made.values()
    if count < 3 * 4096:
        return
    cuts = [0, count // 3 * DTYPES[dtype].size, count // 2 * DTYPES[dtype].size, None]
    for _ in range(3):
        names = generator.choice(list(made), 3, replace=False)
        parts = zip(names, cuts, cuts[1:], strict=False)
        yield np.concatenate([made[name][begin:end] for name, begin, end in parts])


LOSSLESS_COUNTS = (1, 2, 31, 64, 65, 255, 511, 512, 1000, 4095, 4096, 4097, 20_000)


@pytest.mark.parametrize("dtype", LOSSLESS)
def test_lossless_keeps_every_bit(run: Run, dtype: str) -> None:
    """The device encodes, and decodes what either encoder made. The host decodes what the device
    made. Data of one class have the bits of the host's encoder."""
    generator = np.random.default_rng(SEED)
    kind, size = DTYPES[dtype], DTYPES[dtype].size
    shorter = 0
    for count in LOSSLESS_COUNTS:
        capacity = _core.codec_capacity("lossless", kind, count)
        classes = len(kinds(dtype, generator, 1))
        for number, raw in enumerate(shrunk(dtype, count, generator)):
            note = f"seed {SEED}: {count}, data {number}"
            source = at_offset(raw, size)
            encoded = at_offset(np.full(HEADER + capacity + 16, 0xA5, np.uint8), 0)
            for launch in _core.encode_launches(
                "lossless", kind, address(encoded), address(source), 0, count
            ):
                run(launch)
            assert (encoded[HEADER + capacity :] == 0xA5).all(), note
            length = int(encoded[:8].view(np.uint64)[0])
            by_host = np.empty(capacity, np.uint8)
            wanted = _core.codec_encode("lossless", kind, by_host, raw)
            assert length <= wanted, note
            shorter += length < raw.size
            if number < classes:
                assert length == wanted, note
                np.testing.assert_array_equal(
                    encoded[HEADER : HEADER + length], by_host[:wanted], note
                )
            back = np.empty_like(raw)
            _core.codec_decode("lossless", kind, back, encoded[HEADER : HEADER + length].copy())
            np.testing.assert_array_equal(back, raw, note)
            for data in (encoded[HEADER : HEADER + length].copy(), by_host[:wanted]):
                memory = at_offset(np.full(HEADER + capacity, 0x5A, np.uint8), 0)
                memory[:8] = np.array([data.size], np.uint64).view(np.uint8)
                memory[HEADER : HEADER + data.size] = data
                target = at_offset(np.zeros(raw.size + size, np.uint8), size)
                places = (address(target), 0, [address(memory)], count)
                run(_core.decode_launch("lossless", kind, *places))
                np.testing.assert_array_equal(target[: raw.size], raw, note)
                assert (target[raw.size :] == 0).all(), note
    assert shorter > len(LOSSLESS_COUNTS)


@pytest.mark.parametrize("dtype", LOSSLESS)
def test_lossless_data_that_no_encoder_made_give_nans(run: Run, dtype: str) -> None:
    """Lengths and numbers of escapes that do not fit. No access is outside the memory."""
    generator = np.random.default_rng(SEED)
    kind, count = DTYPES[dtype], 10_000
    raw = encode(dtype, generator.normal(size=count))
    capacity = _core.codec_capacity("lossless", kind, count)
    data = np.empty(capacity, np.uint8)
    length = _core.codec_encode("lossless", kind, data, raw)
    assert length < raw.size
    refused = 0
    for number in range(60):
        memory = at_offset(np.zeros(HEADER + capacity, np.uint8), 0)
        given = int(generator.integers(0, length)) if number % 3 == 2 else length
        memory[:8] = np.array([given], np.uint64).view(np.uint8)
        memory[HEADER : HEADER + length] = data[:length]
        end = 40 if number % 3 == 1 else length
        place = int(generator.integers(0, end)) if number else STORED
        memory[HEADER + place] ^= int(generator.integers(1, 256)) if number else 2
        got, want = np.empty_like(raw), np.empty_like(raw)
        run(_core.decode_launch("lossless", kind, address(got), 0, [address(memory)], count))
        try:
            _core.codec_decode("lossless", kind, want, memory[HEADER : HEADER + given])
        except _core.TransportError:
            refused += 1
            assert np.isnan(float_oracle.decode(dtype, got)).any(), f"seed {SEED}: {number}"
        else:
            np.testing.assert_array_equal(got, want, f"seed {SEED}: {number}")
    assert refused >= 20
