"""Arrays that a call cannot take are refused before anything is sent, with the right remedy."""

from __future__ import annotations

import array
import ctypes
import datetime
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from abilities import need
from communicators import run_ranks

import hetcomm
from hetcomm import Communicator

Make = Callable[[], Any]


@pytest.fixture
def alone() -> Iterator[Communicator]:
    with Communicator.from_env({}) as group:
        yield group


def refusal(group: Communicator, call: Callable[..., object], *given: Any, **options: Any) -> str:
    """The text of the refusal of a call that starts no operation."""
    with group.trace() as traces, pytest.raises(hetcomm.InvalidArgumentError) as refused:
        call(*given, **options)
    assert not traces, "the call has started an operation"
    text = str(refused.value)
    assert "expected" in text and "\n" not in text and "At:" not in text, text
    return text


def read_only(given: Any) -> Any:
    given.flags.writeable = False
    return given


def calls_with(group: Communicator, out: Any, given: Any) -> list[Callable[[], object]]:
    """Every call that fills `out` of four float32."""
    return [
        lambda: group.all_reduce(given, out),
        lambda: group.all_reduce(given, out, async_op=True).wait(),
        lambda: group.all_reduce(out, out),
        lambda: group.broadcast(out),
        lambda: group.broadcast(out, async_op=True).wait(),
        lambda: group.reduce(given, out),
        lambda: group.all_gather(given, out),
        lambda: group.gather(given, out),
        lambda: group.scatter(given, out=out),
        lambda: group.reduce_scatter(given, out),
        lambda: group.all_to_all(given, out),
        lambda: group.recv(out, 0),
        lambda: group.recv(out, 0, async_op=True),
        lambda: group.sendrecv(given, 0, out, 0),
    ]


def mapped(folder: Path) -> Any:
    np.zeros(4, np.float32).tofile(folder / "mapped")
    return np.memmap(folder / "mapped", dtype=np.float32, mode="r")


UNWRITABLE: dict[str, tuple[Make, str]] = {
    "array": (lambda: read_only(np.zeros(4, np.float32)), "read-only ndarray; pass a copy"),
    "strided": (lambda: read_only(np.zeros(8, np.float32)[::2]), "writable"),
    "memoryview": (lambda: memoryview(bytes(16)).cast("f"), "read-only memoryview; pass a copy"),
    "bytes": (lambda: bytes(16), "read-only bytes; pass a copy"),
    "broadcast": (lambda: np.broadcast_to(np.float32(1), (4,)), "writable"),
    "masked": (lambda: np.ma.masked_array(np.zeros(4, np.float32), [1, 0, 0, 0]), "MaskedArray"),
    "masked strided": (lambda: np.ma.zeros(8, np.float32)[::2], "MaskedArray"),
    "strided memoryview": (
        lambda: memoryview(bytearray(32)).cast("f")[::2], "memoryview that is not; copy it"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNWRITABLE)
def test_an_unwritable_result_is_refused_before_the_call(alone: Communicator, name: str) -> None:
    make, words = UNWRITABLE[name]
    for call in calls_with(alone, make(), np.ones(4, np.float32)):
        assert words in refusal(alone, call)


def test_a_mapped_file_that_is_read_only_is_refused(alone: Communicator, tmp_path: Path) -> None:
    for call in calls_with(alone, mapped(tmp_path), np.ones(4, np.float32)):
        assert "read-only memmap; pass a copy" in refusal(alone, call)


def tensors() -> dict[str, tuple[Make, str]]:
    import torch

    def freed() -> torch.Tensor:
        made = torch.ones(4)
        made.untyped_storage().resize_(0)
        return made

    def truncated() -> torch.Tensor:
        made = torch.ones(8)[4:]
        made.untyped_storage().resize_(20)
        return made

    return {
        "expanded": (lambda: torch.ones(1).expand(4), "memory of their own"),
        "sparse": (lambda: torch.eye(4).to_sparse(), "dense tensor"),
        "compressed": (lambda: torch.eye(4).to_sparse_csr(), "dense tensor"),
        "other layout": (lambda: torch.ones(4).to_mkldnn(), "dense tensor"),
        "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "dense"),
        "jagged": (
            lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), "dense tensor"
        ),
        "quantised": (lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
                      "Tensor that cannot"),
        "without data": (lambda: torch.ones(4, device="meta"), "Tensor that cannot"),
        "freed": (freed, "memory"),
        "truncated": (truncated, "memory"),
    }  # fmt: skip


TENSORS = (
    "expanded", "sparse", "compressed", "other layout", "nested", "jagged", "quantised",
    "without data", "freed", "truncated",
)  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_without_plain_memory_is_refused(alone: Communicator, name: str) -> None:
    need("torch")
    import torch

    make, words = tensors()[name]
    for call in calls_with(alone, make(), torch.ones(4)):
        assert words in refusal(alone, call)
    if name == "expanded":
        return  # as an input it is copied
    for call in (
        lambda: alone.all_reduce(make()),
        lambda: alone.all_gather(make(), torch.ones(4), async_op=True),
        lambda: alone.send(make(), 0),
    ):
        assert "expected a" in refusal(alone, call)


def test_torchs_collectives_write_where_autograd_looks(alone: Communicator) -> None:
    """As torch's own: below autograd, into leaves that require grad and inference tensors."""
    need("torch")
    import torch

    def inference(count: int) -> torch.Tensor:
        with torch.inference_mode():
            return torch.zeros(count)

    makes: list[Callable[[], torch.Tensor]] = [
        lambda: torch.nn.Parameter(torch.zeros(4)),
        lambda: torch.nn.Parameter(torch.zeros(8)[::2]),
        lambda: torch.nn.Parameter(torch.zeros(4)) * 1,
        lambda: (torch.nn.Parameter(torch.zeros(8)) * 1)[::2],
        lambda: inference(4),
        lambda: inference(8)[::2],
    ]
    for make in makes:
        given = torch.nn.Parameter(torch.arange(8.0)[::2])
        for async_op in (False, True):
            out = make()
            before = out.requires_grad, out.is_leaf
            got = alone.all_reduce(given, out, async_op=async_op)
            assert (got.wait() if async_op else got) is out
            assert out.tolist() == [0.0, 2.0, 4.0, 6.0]
            assert (out.requires_grad, out.is_leaf) == before
        in_place = make()
        assert alone.all_reduce(in_place, in_place) is in_place
        assert not alone.all_reduce(given).requires_grad


class Pointers(ctypes.Structure):
    _fields_ = (("text", ctypes.c_char_p), ("number", ctypes.c_long))


REFERENCES: dict[str, Make] = {
    "objects": lambda: np.array([1, None], object),
    "strided objects": lambda: np.array([1, None] * 2, object)[::2],
    "record": lambda: np.zeros(2, [("number", int), ("text", object)]),
    "strings": lambda: np.array(["a", "b"], np.dtypes.StringDType()),
    "strided strings": lambda: np.array(["a", "b"] * 2, np.dtypes.StringDType())[::2],
    "pointers": lambda: (ctypes.POINTER(ctypes.c_int) * 2)(),
    "functions": lambda: (ctypes.CFUNCTYPE(None) * 2)(),
    "texts": lambda: (ctypes.c_char_p * 2)(),
    "wide texts": lambda: (ctypes.c_wchar_p * 2)(),
    "addresses": lambda: (ctypes.c_void_p * 2)(),
    "Python's": lambda: (ctypes.py_object * 2)(),
    "structures": lambda: (Pointers * 2)(),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_elements_that_hold_addresses_are_refused(alone: Communicator, name: str) -> None:
    given = REFERENCES[name]()
    for call in (
        lambda: alone.broadcast(given),
        lambda: alone.broadcast(given, async_op=True),
        lambda: alone.all_gather(given, bytearray(32)),
        lambda: alone.send(given, 0),
        lambda: alone.recv(given, 0),
    ):
        assert "an array of numbers" in refusal(alone, call)


def travels(alone: Communicator, given: Any, name: object) -> bool:
    """Whether an array travels bit by bit. Otherwise every call refuses its dtype."""
    try:
        got = alone.all_gather(given)
    except hetcomm.InvalidArgumentError:
        for call in (
            lambda: alone.all_gather(given),
            lambda: alone.broadcast(given, async_op=True),
            lambda: alone.send(given, 0),
        ):
            assert "elements" in refusal(alone, call) or "numbers" in refusal(alone, call), name
        return False
    assert bytes(got.data) == bytes(given.data), name
    return True


def test_every_dtype_of_numpy_travels_or_is_refused(alone: Communicator) -> None:
    kinds = [kind for kind in np.sctypeDict.values() if kind is not np.void]
    dtypes = {np.dtype(kind) for kind in kinds if np.dtype(kind).itemsize > 0}
    dtypes |= {np.dtype(text) for text in ("S4", "S3", "U1", "U5", "V8", "V3", "M8[s]", "m8[us]")}
    dtypes |= {np.dtype([("a", "i4"), ("b", "f4")]), np.dtype([("a", "i4"), ("b", "f8")])}
    travelled = set()
    for dtype in dtypes:
        for given in (
            np.zeros(2, dtype),
            np.zeros(4, dtype)[::2],
            np.zeros(2, dtype.newbyteorder()),
        ):
            given = np.ascontiguousarray(given) if dtype.kind in "Mm" else given
            if dtype.hasobject:
                assert "an array of numbers" in refusal(alone, alone.all_gather, given)
            elif dtype.kind not in "Mm" and travels(alone, given, dtype):
                travelled.add(given.dtype)
    refused = {"g", "G", "S3", "U5", "V3"}
    for text in refused:
        assert np.dtype(text) not in travelled
    expected = {np.dtype(text) for text in ("?bBhHiIlLqQefdFD",)[0]}
    assert expected <= travelled
    for text in ("M8[s]", "m8[us]"):
        times = np.arange(3).astype(text)
        assert (alone.all_gather(times)[0] == times).all()
        assert "numeric dtype" in refusal(alone, alone.all_reduce, times)


def test_every_dtype_of_torch_travels_or_is_refused(alone: Communicator) -> None:
    need("torch")
    import torch

    travelled = set()
    for dtype in {kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}:
        try:
            given = torch.empty(4, dtype=dtype)
        except (RuntimeError, TypeError):  # torch has the name only
            continue
        try:
            got = alone.all_gather(given)
        except hetcomm.InvalidArgumentError as error:
            assert "expected" in str(error) and "At:" not in str(error), dtype
            continue
        assert got.dtype == dtype and got.shape == (1, *given.shape)
        travelled.add(dtype)
    assert {torch.float32, torch.bfloat16, torch.uint16, torch.complex64, torch.bool} <= travelled


@pytest.mark.needs("ml_dtypes")
def test_every_dtype_of_ml_dtypes_travels(alone: Communicator) -> None:
    import ml_dtypes

    kinds = [kind for kind in vars(ml_dtypes).values() if isinstance(kind, type)]
    dtypes = [np.dtype(kind) for kind in kinds if issubclass(kind, np.generic)]
    assert len(dtypes) > 10
    for dtype in dtypes:
        for given in (np.ones(4).astype(dtype), np.ones(8).astype(dtype)[::2]):
            got = alone.all_gather(given)
            assert got.dtype == dtype and (got.view(np.uint8) == 1 * got.view(np.uint8)).all()
            assert got.tobytes() == given.tobytes(), dtype
            if dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
                assert alone.all_reduce(given).tobytes() == given.tobytes()
            else:
                assert "numeric dtype" in refusal(alone, alone.all_reduce, given), dtype


def test_an_overlap_is_refused_with_what_the_call_permits(alone: Communicator) -> None:
    x = np.zeros(12, np.float32)
    assert "or the input itself" in refusal(alone, lambda: alone.all_reduce(x[:8], x[4:]))
    for call in (alone.all_gather, alone.all_to_all, alone.reduce_scatter):
        text = refusal(alone, call, x[:8], x[4:])
        assert "an output apart from the input, or one of both as the block of rank 0" in text
        assert call(x, x) is x  # its own block
    assert "apart from the input" in refusal(alone, alone.reduce, x, x)
    assert alone.all_reduce(x, x) is x


@pytest.mark.parametrize("timeout", [math.nan, -1.0, -math.inf, -0.001])
def test_a_timeout_that_is_none_is_refused(timeout: float) -> None:
    x = np.zeros(4)
    for call in (
        lambda group: group.all_reduce(x, x, timeout=timeout),
        lambda group: group.all_reduce(x, x, async_op=True, timeout=timeout),
        lambda group: group.barrier(timeout=timeout),
        lambda group: group.send(x, 0, timeout=timeout),
        lambda group: group.recv(x, 0, timeout=timeout),
        lambda group: group.all_gather_object(1, timeout=timeout),
        lambda group: group.recv_object(0, timeout=timeout),
    ):
        with Communicator.from_env({}) as group:
            assert "timeout: expected 0 seconds or more" in refusal(group, call, group)
    with Communicator.from_env({}) as group:
        work = group.all_reduce(x, x, async_op=True)
        for made in (
            lambda: Communicator.from_env({}, timeout=timeout),
            lambda: Communicator.from_store(hetcomm.Store(), 0, 2, timeout=timeout),
            lambda: Communicator.from_mpi(None, timeout=timeout),
            lambda: hetcomm.TcpStore("127.0.0.1", 1, timeout=timeout),
            lambda: work.wait(timeout),
        ):
            assert "timeout: expected 0 seconds or more" in refusal(group, made)
        work.wait()


def test_the_longest_times_are_times() -> None:
    store = hetcomm._core.LocalStore()
    store.set("key", b"value")
    for longest in (datetime.timedelta.max, datetime.timedelta(days=200_000_000)):
        assert store.get("key", longest) == b"value"
    with pytest.raises(hetcomm.InvalidArgumentError, match="expected 0 seconds or more"):
        store.get("key", datetime.timedelta(seconds=-1))
    assert hetcomm._core.timeout(math.inf) == hetcomm._core.timeout(1e300) == 1e9
    assert hetcomm._core.format_seconds(-1.5) == "-1.5 s"
    assert "e+" not in hetcomm._core.format_seconds(datetime.timedelta.max.total_seconds())
    with Communicator.from_env({}, timeout=math.inf) as group:
        group.barrier(timeout=math.inf)


def test_a_fraction_is_told_to_be_no_whole_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETCOMM_PEER_TIMEOUT", "2.5")
    for error in run_ranks("aa", lambda communicator: None):
        assert "expected a whole number from" in str(error) and 'got "2.5"' in str(error), error


X = np.zeros(4)
WRONG_ARGUMENTS: dict[str, tuple[str, Callable[[Communicator], object]]] = {
    "timeout str": ("timeout", lambda group: group.all_reduce(X, timeout="5")),
    "timeout timedelta": (
        "total_seconds()", lambda group: group.barrier(timeout=datetime.timedelta(seconds=5))
    ),
    "timeout later": ("timeout", lambda group: group.all_reduce(X, async_op=True, timeout="5")),
    "timeout of a message": ("timeout", lambda group: group.send(X, 0, timeout=[5])),
    "timeout of set-up": ("timeout", lambda group: Communicator.from_env({}, timeout="5")),
    "root str": ("root", lambda group: group.broadcast(X, root="0")),
    "root float": ("root", lambda group: group.broadcast(X, root=0.0, async_op=True)),
    "root beyond": ("root", lambda group: group.broadcast(X, root=1 << 70, async_op=True)),
    "factor": ("factor", lambda group: group.all_reduce(X, op="premul_sum", factor="a")),
    "factor later": ("factor", lambda group: group.all_reduce(X, factor=None, async_op=True)),
    "codec": ("codec", lambda group: group.all_reduce(X, codec=5)),
    "tag str": ("tag", lambda group: group.send(X, 0, tag="a")),
    "tag float": ("tag", lambda group: group.send_object(X, 0, tag=1.5)),
    "tag of sendrecv": ("tag", lambda group: group.sendrecv(X, 0, source=0, recv_tag=-1)),
    "to": ("rank", lambda group: group.send(X, "0")),
    "to beyond": ("rank", lambda group: group.send(X, 1 << 40)),
    "source": ("source", lambda group: group.recv(X, "0")),
    "source of sendrecv": ("from 0 to 0", lambda group: group.sendrecv(X, 0, source=5)),
    "source of objects": ("rank", lambda group: group.recv_object(-1)),
    "values": ("1 values, got 3", lambda group: group.scatter_object([1, 2, 3])),
    "no values": ("got a NoneType", lambda group: group.scatter_object(None)),
    "one value": ("got a int", lambda group: group.all_to_all_object(5)),
    "splits": ("split sizes", lambda group: group.all_to_all(X, input_split_sizes=[1 << 70])),
    "rows": ("shape", lambda group: group.all_to_all(X, output_split_sizes=[1 << 60])),
    "color": ("color", lambda group: group.split("a")),
    "key": ("key", lambda group: group.split(0, None)),
    "path": ("path_to", lambda group: group.path_to(5)),
    "path str": ("rank", lambda group: group.path_to("a")),
    "rank": ("rank", lambda group: Communicator.from_store(hetcomm._core.LocalStore(), "0", 1)),
    "store": ("store", lambda group: Communicator.from_store(None, 0, 1)),
    "port": ("port", lambda group: hetcomm.TcpStore("127.0.0.1", 99_999)),
    "port of a server": ("port", lambda group: hetcomm.TcpStoreServer(-1)),
    "device": ("device", lambda group: Communicator.from_env({}, device=None)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_a_wrong_argument_is_named(alone: Communicator, name: str) -> None:
    word, call = WRONG_ARGUMENTS[name]
    if "value" in name:  # the ranks exchange their refusals
        with pytest.raises(hetcomm.InvalidArgumentError, match=word):
            call(alone)
        return
    text = refusal(alone, call, alone)
    assert word in text and "incompatible" not in text, text


def test_other_objects_are_named(alone: Communicator) -> None:
    x = np.zeros(4)
    for given in ([1.0], 5, "text", {1}, iter(()), datetime.timedelta(1), object()):
        kind = type(given).__name__
        assert kind in refusal(alone, alone.all_reduce, given)
        assert kind in refusal(alone, alone.all_reduce, given, x)
        assert kind in refusal(alone, alone.all_gather, x, given)
        assert kind in refusal(alone, alone.broadcast, given)
        assert kind in refusal(alone, alone.send, given, 0)
        assert kind in refusal(alone, alone.recv, given, 0)
    assert "3 bytes" not in refusal(alone, lambda: alone.broadcast(np.zeros(2, "V3")))
    assert "3, of type" in refusal(alone, lambda: alone.broadcast(np.zeros(2, "V3")))
    assert array.array("f", [1]) == alone.broadcast(array.array("f", [1]))
