"""A flat piece of a tensor, as torch.distributed.checkpoint saves and loads it."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from hetcomm import _core

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes."""


def boxes(start: int, end: int, shape: tuple[int, ...]) -> list[Box]:
    """The boxes of elements start to end of a flattened tensor, in order: at most 2N - 1 of N axes.

    Each box is contiguous in the flattened tensor.
    """
    if start >= end:
        return []
    if not shape:
        return [((), ())]
    row = prod(shape[1:])
    first, last = -(-start // row), end // row
    if first > last:  # inside one row
        return _in_row(last, start, end, shape)
    found = _in_row(first - 1, start, first * row, shape)
    if first < last:
        zeros = (0,) * (len(shape) - 1)
        found.append(((first, *zeros), (last - first, *shape[1:])))
    return found + _in_row(last, last * row, end, shape)


def _in_row(index: int, start: int, end: int, shape: tuple[int, ...]) -> list[Box]:
    row = prod(shape[1:])
    inner = boxes(start - index * row, end - index * row, shape[1:])
    return [((index, *offsets), (1, *sizes)) for offsets, sizes in inner]


class Piece(torch.Tensor):
    """This rank's piece of a tensor of another shape.

    The piece follows the protocol by which torch.distributed.checkpoint treats sharded tensors. So
    a checkpoint has whole tensors, and loads into any other partition. own: 1-D, a view of the
    partition's memory; box: the part of the tensor that ranks divide, all of it but for a
    tensor-parallel one; start: the place of `own` in the flattened box.
    """

    own: torch.Tensor
    start: int
    box: Box

    @staticmethod
    def __new__(
        cls, values: torch.Tensor, start: int, shape: torch.Size, box: Box | None = None
    ) -> Piece:
        """box: all of the tensor, if None."""
        piece = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=values.dtype, device=values.device
        )
        piece.own, piece.start = values.detach(), start
        piece.box = box or ((0,) * len(shape), tuple(shape))
        return piece

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        end = self.start + len(self.own)
        return f"Piece({self.start} to {end} of {self.box} of {tuple(self.shape)}, {self.own})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        aten = torch.ops.aten
        kept = (aten.detach.default, aten.clone.default, aten._to_copy.default)
        if isinstance(args[0], Piece):
            piece, rest = args[0], args[1:]
            alike = function is aten.new_empty.default and tuple(rest[0]) == tuple(piece.shape)
            if alike:  # of dcp.async_save()
                rest = (piece.own.shape, *rest[1:])
            if alike or function in kept:
                own = function(piece.own, *rest, **(kwargs or {}))
                return Piece(own, piece.start, piece.shape, piece.box)
        raise _core.InvalidArgumentError(
            f"{function}: expected a whole tensor, got a rank's piece of one; use "
            "Partition.full_state_dict(), or torch.distributed.checkpoint"
        )

    def _boxes(self) -> list[Box]:
        corner, sizes = self.box
        return [
            (tuple(c + o for c, o in zip(corner, offsets, strict=True)), extent)
            for offsets, extent in boxes(self.start, self.start + len(self.own), sizes)
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s in self._boxes()]

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk,
                    properties=TensorProperties.create_from_tensor(self.own),
                    size=self.shape,
                ),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """The elements of one of the boxes, as a view."""
        begin = 0
        for offsets, sizes in self._boxes():
            end = begin + prod(sizes)
            if index.offset is None or tuple(index.offset) == offsets:
                return self.own[begin:end].view(sizes)
            begin = end
        raise _core.InvalidArgumentError(
            f"{index.fqn}: expected a box of this rank, got offsets {index.offset}"
        )
