"""Any backend of torch.distributed, by its public functions."""

from __future__ import annotations

import socket
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import hetcomm
from hetcomm import _core
from hetcomm.bench.backends import Backend, Operation, ping_pong, usual_codec
from hetcomm.bench.case import Case
from hetcomm.bench.control import ControlChannel
from hetcomm.bench.error import BenchError
from hetcomm.bench.values import Array


class TorchBackend(Backend):
    """A process group. Host tensors share the memory of NumPy arrays, device tensors are copies."""

    def __init__(self, name: str, which: str, control: ControlChannel, device: str) -> None:
        super().__init__(name, f"{which} of torch {torch.__version__}")
        if not dist.is_available() or not dist.is_backend_available(which):
            known = [each for each in dist.Backend.backend_list if dist.is_backend_available(each)]
            raise _core.InvalidArgumentError(
                f"--backend {name}: this torch has no {which}, only {', '.join(known)}; install it "
                "or choose one of these"
            )
        self._device = _device(name, which, device)
        # With an accelerator, a backend for both would copy host tensors through it.
        beside = self._device.type == "cpu" and torch.accelerator.is_available()
        backend = f"cpu:{which}" if beside else which
        if not dist.is_initialized():
            dist.init_process_group(
                backend,
                store=_store(control),
                rank=control.rank,
                world_size=control.size,
                timeout=timedelta(seconds=control.timeout),
            )
        ours = which == "hetcomm"
        self._group = dist.new_group(
            backend=backend,
            timeout=timedelta(seconds=control.timeout),
            pg_options=hetcomm.Options(bridge_codec=usual_codec()) if ours else None,
        )

    def prepare(self, case: Case, given: Array, got: Array) -> Operation:
        source, target = self._tensor(case, given), self._tensor(case, got)
        if case.in_place:  # device copies are still separate
            source = target
            if case.collective == "all_gather":
                source = target[dist.get_rank() * case.count :][: case.count]
        call = self._call(case, source, target)
        if self._device.type == "cpu":
            return Operation(call)
        host_source, host_target = _typed(case, given), _typed(case, got)
        return Operation(
            call,
            finish=partial(torch.accelerator.synchronize, self._device),
            load=partial(source.copy_, host_source),
            read=partial(host_target.copy_, target),
        )

    def _call(self, case: Case, source: Any, target: Any) -> Any:
        name, root, group = case.collective, case.root, self._group
        here = dist.get_rank() == root
        op = getattr(dist.ReduceOp, case.op.upper()) if case.op else None
        if name in ("all_reduce", "reduce"):
            # A reduce of torch may overwrite every rank's tensor.
            written = target if target.numel() or not source.numel() else torch.empty_like(source)
            if name == "all_reduce":
                call = partial(dist.all_reduce, written, op, group)
            else:
                call = partial(dist.reduce, written, root, op, group)
            return call if case.in_place else partial(_copy_first, written, source, call)
        if name == "broadcast":
            return partial(dist.broadcast, target, root, group)
        if name == "reduce_scatter":
            return partial(dist.reduce_scatter_tensor, target, source, op, group)
        if name == "all_gather":
            return partial(dist.all_gather_into_tensor, target, source, group)
        if name == "all_to_all":
            return partial(dist.all_to_all_single, target, source, group=group)
        if name == "gather":
            parts = list(target.chunk(case.ranks)) if here else None
            return partial(dist.gather, source, parts, root, group)
        if name == "scatter":
            parts = list(source.chunk(case.ranks)) if here else None
            return partial(dist.scatter, target, parts, root, group)
        if name == "send_recv":
            return partial(self._exchange, source, target)
        if name == "ping_pong":
            send = partial(dist.send, source, group=group)
            receive = partial(dist.recv, target, group=group)
            return ping_pong(dist.get_rank(), case.ranks, send, receive)
        return partial(dist.barrier, group)

    def _exchange(self, source: Any, target: Any) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        both = [
            dist.P2POp(dist.isend, source, (rank + 1) % size, self._group),
            dist.P2POp(dist.irecv, target, (rank - 1) % size, self._group),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    def _tensor(self, case: Case, kept: Array) -> Any:
        return _typed(case, kept).to(self._device)

    def barrier(self) -> None:
        dist.barrier(self._group)

    def close(self) -> None:
        if dist.is_initialized():  # the first backend to close destroys all groups
            dist.destroy_process_group()


def _copy_first(target: Any, source: Any, call: Any) -> None:
    """Out of place: torch.distributed lacks this form, so its users copy."""
    target.copy_(source)
    call()


def _typed(case: Case, kept: Array) -> Any:
    tensor = torch.from_numpy(kept)
    dtype = getattr(torch, case.dtype)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def _device(name: str, which: str, wanted: str) -> Any:
    """The user's choice, else the host if the backend serves host memory, else the accelerator."""
    served = dist.Backend.backend_capability.get(which, ["cpu"])
    chosen = wanted or ("cpu" if "cpu" in served else served[0])
    if chosen not in served:
        raise _core.InvalidArgumentError(
            f"--device: {name} serves {', '.join(served)}; got {chosen}"
        )
    if chosen == "cpu":
        return torch.device("cpu")
    found = torch.accelerator.current_accelerator()
    if found is None or found.type != chosen:
        raise _core.InvalidArgumentError(
            f"--backend {name}: it needs {chosen}, and torch finds {found or 'no accelerator'} here"
        )
    index = dist.get_node_local_rank(0) % torch.accelerator.device_count()
    torch.accelerator.set_device_index(index)
    return torch.device(chosen, index)


def _store(control: ControlChannel) -> Any:
    """A torch store. Rank 0 serves it and announces the port."""
    timeout = timedelta(seconds=control.timeout)
    if control.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, control.size, True, timeout, wait_for_workers=False)
        nics = [nic.address for nic in _core.probe_rank().nics if nic.address]
        addresses = [control.address] if control.address else [*nics, "127.0.0.1"]
        control.part("torch").set("addresses", f"{store.port} {' '.join(addresses)}".encode())
        return store
    published = bytes(control.part("torch").get("addresses", timeout)).decode()
    port, *addresses = published.split()
    for address in addresses:
        try:
            socket.create_connection((address, int(port)), 5.0).close()
        except OSError:
            continue
        return dist.TCPStore(
            address, int(port), control.size, False, timeout, wait_for_workers=False
        )
    raise BenchError(
        f"rank 0's torch store answers at none of {', '.join(addresses)}, port {port}; check that "
        "no firewall is in between"
    )
