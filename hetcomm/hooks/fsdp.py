"""Compressed collectives for fully_shard (FSDP2): quantised weights and gradients, as in ZeRO++.

Source: Wang and others, ZeRO++, arXiv 2306.10209.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

import hetcomm
from hetcomm import _core, functional
from hetcomm.residuals import check_codec, pack, unpack

_compressed: WeakSet[Any] = WeakSet()  # modules


class _Buffers:
    """Allocates torch's buffers anew for each call, as torch's default does."""

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class AllGather(_Buffers):
    """For FSDPModule.set_custom_all_gather(): gathers parameters with a codec between hosts."""

    def __init__(self, codec: str = "int8") -> None:
        check_codec(codec)
        self.codec = codec

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        if not input_tensor.is_floating_point():
            raise _core.InvalidArgumentError(
                f"all_gather: expected floating-point parameters, got {input_tensor.dtype}, which "
                "fully_shard uses for parameters of several dtypes; pass fully_shard a "
                "MixedPrecisionPolicy(param_dtype=...), or shard these parameters apart"
            )
        return functional.all_gather(
            output_tensor, input_tensor, codec=self.codec, group=group, async_op=async_op
        )


class ReduceScatter(_Buffers):
    """For FSDPModule.set_custom_reduce_scatter(): reduces gradients with a codec between hosts.

    torch names the operation, so the mean is over all ranks of the mesh.

    Args:
        feedback: keeps what the codec loses. Modules may share it.
        name: of the module, for the keys of feedback.
    """

    def __init__(
        self, codec: str = "int4", feedback: hetcomm.Feedback | None = None, name: str = "module"
    ) -> None:
        check_codec(codec)
        self.codec = codec
        self.feedback = feedback
        self.name = name

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        # A step without gradients of some parameters reduces fewer elements.
        return functional.reduce_scatter(
            output_tensor,
            input_tensor,
            op,
            codec=self.codec,
            group=group,
            feedback=self.feedback,
            key=f"{self.name}:{input_tensor.numel()}",
            async_op=async_op,
        )


class CompressedFsdp:
    """What compress_fsdp() has set up, for checkpoints. feedback: the residuals, or None."""

    def __init__(self, codec: str | None, feedback: hetcomm.Feedback | None) -> None:
        self._codec = codec
        self.feedback = feedback

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on with the same bits. Every rank saves its own."""
        residuals = {} if self.feedback is None else pack(self.feedback)
        return {"codec": self._codec, "residuals": residuals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on as the rank that returned the state.

        Raises:
            hetcomm.InvalidArgumentError: the state is of another codec, or of a model with other
                feedback.
        """
        if state["codec"] != self._codec:
            raise _core.InvalidArgumentError(
                f"state: expected one of codec {self._codec!r}, got {state['codec']!r}; pass that "
                "codec to compress_fsdp()"
            )
        if self.feedback is not None:
            unpack(self.feedback, state["residuals"])
        elif state["residuals"]:
            raise _core.InvalidArgumentError(
                "state: expected no residuals, because feedback is off; pass feedback=True"
            )


def compress_fsdp(
    model: torch.nn.Module,
    all_gather: str | None = "int8",
    reduce_scatter: str | None = "int4",
    feedback: bool = True,
) -> CompressedFsdp:
    """Gives all FSDPModules in the model compressed collectives. Call this after fully_shard().

    Args:
        all_gather: the codec of parameters; None leaves them as they are.
        reduce_scatter: the codec of gradients; None leaves them as they are.
        feedback: adds to each step's gradients what the codec lost of the step before.

    Raises:
        hetcomm.InvalidArgumentError: there is no such codec, the model has no FSDPModule, or one
            that is compressed already.
        hetcomm.VendorError: this torch lets fully_shard take no other collectives.
    """
    for codec in (all_gather, reduce_scatter):
        if codec is not None:
            check_codec(codec)
    modules: dict[str, Any] = {
        name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)
    }
    if not modules:
        raise _core.InvalidArgumentError(
            f"model: expected a model with fully_shard() applied, got {type(model).__qualname__} "
            "without an FSDPModule; call fully_shard() first, or see compressed() for DDP"
        )
    for name, module in modules.items():
        if module in _compressed:
            raise _core.InvalidArgumentError(
                f"model: {name or 'the root'} is compressed already; call compress_fsdp() once, on "
                "the root"
            )
    if not hasattr(FSDPModule, "set_custom_all_gather"):
        raise _core.VendorError(
            "compress_fsdp: expected a torch whose FSDPModule has set_custom_all_gather(), got "
            f"{torch.__version__}; install a newer torch"
        )
    residuals = hetcomm.Feedback() if feedback and reduce_scatter is not None else None
    for name, module in modules.items():
        if all_gather is not None:
            module.set_custom_all_gather(AllGather(all_gather))
        if reduce_scatter is not None:
            module.set_custom_reduce_scatter(ReduceScatter(reduce_scatter, residuals, name))
        _compressed.add(module)
    return CompressedFsdp(reduce_scatter, residuals)
