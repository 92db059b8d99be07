"""A communication hook for DistributedDataParallel: averages gradients with a codec."""

# Without `from __future__ import annotations`: DDP compares the annotations of its hook.
from collections.abc import Mapping
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hetcomm
from hetcomm import _core, functional
from hetcomm.residuals import check_codec, pack, unpack

Numbers = tuple[int, ...]  # of the parameters of a bucket, in its order

# DDP cuts buckets anew after its first step, and after its second one if the graph is static.
_UNSETTLED_STEPS = 3


class Compressed:
    """The state of the hook. One state serves one model. compressed() makes it.

    DDP cuts the gradients into buckets, and cuts them anew after the first steps. A bucket's error
    feedback belongs to the bucket's parameters, so it begins anew with new buckets.
    """

    def __init__(
        self,
        codec: str,
        feedback: bool,
        dtype: torch.dtype | None,
        group: dist.ProcessGroup | None,
    ) -> None:
        check_codec(codec)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise _core.InvalidArgumentError(
                f"dtype: expected a floating-point torch.dtype, or None; got {dtype!r}"
            )
        self.codec = codec
        self.feedback = feedback
        self.dtype = dtype
        self._group = group
        self._model: ref[DistributedDataParallel] | None = None
        self._numbers: dict[torch.Tensor, int] = {}
        self._buckets: list[tuple[Numbers, hetcomm.Feedback]] = []
        self._steps_as_saved = 0  # the most to come
        self._waiting: list[_Waiting] = []

    def register(self, model: DistributedDataParallel) -> "Compressed":
        """Makes the model average its gradients by this hook, in the model's group.

        Raises:
            hetcomm.InvalidArgumentError: this is no DDP model, it has a hook, or this state serves
                another model.
        """
        if not isinstance(model, DistributedDataParallel):
            raise _core.InvalidArgumentError(
                f"model: expected a DistributedDataParallel, got {type(model).__qualname__}; "
                "wrap the model first, or see compress_fsdp() for fully_shard"
            )
        if self._model is not None or self._numbers:
            raise _core.InvalidArgumentError(
                "register: expected a hook of no model, but this one is registered already; "
                "call hetcomm.hooks.compressed() once for each model"
            )
        try:
            model.register_comm_hook(self, average)
        except RuntimeError as error:
            raise _core.InvalidArgumentError(
                f"model: expected a model without a communication hook; torch says: {error}"
            ) from error
        self._model = ref(model)
        self._group = model.process_group
        for parameter in model.parameters():
            self._number(parameter)
        return self

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on with the same bits. Every rank saves its own, and calls
        this between steps, after the third step of the process or later."""
        return {
            "codec": self.codec,
            "buckets": [list(numbers) for numbers, _ in self._buckets],
            "residuals": [pack(feedback) for _, feedback in self._buckets],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on as the rank that returned the state. Call this before the first step.

        Raises:
            hetcomm.InvalidArgumentError: the state is of another codec.
        """
        if state["codec"] != self.codec:
            raise _core.InvalidArgumentError(
                f'state: expected one of codec "{self.codec}", got "{state["codec"]}"; pass that '
                "codec to compressed()"
            )
        buckets = []
        for numbers, residuals in zip(state["buckets"], state["residuals"], strict=True):
            feedback = hetcomm.Feedback()
            unpack(feedback, residuals)
            buckets.append((tuple(numbers), feedback))
        self._buckets = buckets
        self._steps_as_saved = _UNSETTLED_STEPS if buckets else 0

    def _number(self, parameter: torch.Tensor) -> int:
        return self._numbers.setdefault(parameter, len(self._numbers))

    def _average_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        parameters = bucket.parameters()
        numbers = tuple(self._number(each) for each in parameters)
        if self._steps_as_saved > 0:
            sizes = [each.numel() for each in parameters]
            waiting = _Waiting(numbers, sizes, bucket.buffer())
            self._waiting.append(waiting)
            if bucket.is_last():
                self._average_as_saved()
            return waiting.future
        index = bucket.index()
        if index == len(self._buckets) or self._buckets[index][0] != numbers:
            self._buckets[index:] = [(numbers, hetcomm.Feedback())]
        return self._start(bucket.buffer(), self._buckets[index][1])

    def _start(
        self, gradients: torch.Tensor, feedback: hetcomm.Feedback
    ) -> torch.futures.Future[torch.Tensor]:
        """Averages in place. The future has the gradients."""
        sent = gradients if self.dtype is None else gradients.to(self.dtype)
        work = functional.all_reduce(
            sent,
            codec=self.codec,
            group=self._group,
            feedback=feedback if self.feedback else None,
            key="bucket",
            async_op=True,
        )

        def finish(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            average = future.value()[0]
            return gradients if average is gradients else gradients.copy_(average)

        assert work is not None
        return work.get_future().then(finish)

    def _average_as_saved(self) -> None:
        """Averages the buckets of the state. DDP's first buckets differ from later ones, and the
        codec rounds whole buckets. So the bits are the same only in the same buckets."""
        waiting, self._waiting = self._waiting, []
        slices = {number: part for each in waiting for number, part in each.slices()}
        if sorted(slices) != sorted(number for numbers, _ in self._buckets for number in numbers):
            raise _core.InvalidArgumentError(
                "state: expected the hook's state of a model with the same parameters; load the "
                "state that was saved with this model, or none"
            )
        for numbers, feedback in self._buckets:
            flat = torch.cat([slices[number] for number in numbers])
            self._start(flat, feedback).wait()
            averages = flat.split([slices[number].numel() for number in numbers])
            for number, average in zip(numbers, averages, strict=True):
                slices[number].copy_(average)
        for each in waiting:
            each.future.set_result(each.gradients)
        settled = [each.numbers for each in waiting] == [numbers for numbers, _ in self._buckets]
        self._steps_as_saved = 0 if settled else self._steps_as_saved - 1


class _Waiting:
    """A bucket whose average is not there yet."""

    def __init__(self, numbers: Numbers, sizes: list[int], gradients: torch.Tensor) -> None:
        self.numbers = numbers
        self.sizes = sizes
        self.gradients = gradients
        devices: list[Any] = [] if gradients.device.type == "cpu" else [gradients.device]
        self.future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)

    def slices(self) -> list[tuple[int, torch.Tensor]]:
        return list(zip(self.numbers, self.gradients.split(self.sizes), strict=True))


def compressed(
    codec: str = "int8",
    feedback: bool = True,
    dtype: torch.dtype | None = None,
    group: dist.ProcessGroup | None = None,
) -> Compressed:
    """A communication hook for DDP that averages each bucket of gradients with a codec.

        hook = hetcomm.hooks.compressed("int8").register(model)

    or, for code that takes a state and a function,
    `model.register_comm_hook(hetcomm.hooks.compressed("int8", group=model.process_group),
    hetcomm.hooks.average)`.

    Args:
        codec: of docs/codecs.md, equal on all ranks.
        feedback: adds to each step's gradients what the codec lost of the step before.
        dtype: in which gradients are summed, instead of their own.
        group: whose ranks average, without register(), which takes the model's.

    Raises:
        hetcomm.InvalidArgumentError: there is no such codec, or the dtype is not floating-point.
    """
    return Compressed(codec, feedback, dtype, group)


def average(state: Compressed, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The function of the hook, for register_comm_hook() with a state by compressed().

    Raises:
        hetcomm.InvalidArgumentError: the state has neither a group nor register().
    """
    if state._group is None:
        raise _core.InvalidArgumentError(
            "compressed: expected group=model.process_group for register_comm_hook(), got none; "
            "pass the group, or call register(model)"
        )
    return state._average_bucket(bucket)
