"""Gives the optimizer's new weights to the ranks that hold them.

With feedback each stage sends differences: what its receivers lack of the new weights. What a lossy
codec loses of one difference is thus part of the next one. The weights that ranks hold are the
memory of this feedback. Source: error feedback of Karimireddy and others, arXiv 1901.09847.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hetcomm.partitioning import collectives
from hetcomm.partitioning.flat import Flat
from hetcomm.partitioning.grid import GRADIENTS, Dimension
from hetcomm.partitioning.stages import InFlight


@dataclass(frozen=True)
class UpdateStage:
    """One gather of new weights, along one dimension.

    held: what the ranks of the dimension have afterwards, equal on all.
    """

    along: Dimension
    held: torch.Tensor

    @property
    def own(self) -> torch.Tensor:
        """The part that this rank gives."""
        return self.held.chunk(self.along.size)[self.along.position]


class Spread:
    """Gathers the new weights of one flat buffer, stage after stage."""

    def __init__(
        self,
        source: torch.Tensor,
        stages: Sequence[UpdateStage],
        codec: str | None,
        differences: bool,
    ) -> None:
        """source: this rank's new weights. differences: stages send what receivers lack."""
        self._source, self._left = source, list(stages)
        self._codec, self._differences = codec, differences
        self._start()

    def _start(self) -> None:
        self._stage = self._left.pop(0)
        own = self._stage.own
        if self._differences:
            self._sent = (self._source - own).to(own.dtype)
            self._got = torch.empty_like(self._stage.held)
        else:
            self._sent, self._got = own, self._stage.held
            if own.data_ptr() != self._source.data_ptr():
                own.copy_(self._source)
        self._work: Any = collectives.gather(self._got, self._sent, self._stage.along, self._codec)

    def advance(self) -> bool:
        """Waits for the stage and starts the next one. True after the last."""
        collectives.wait(self._work)
        if self._differences:
            self._stage.held.add_(self._got)
        self._source = self._stage.held
        more = bool(self._left)
        if more:
            self._start()
        return not more


class Updates:
    """The stages of all flat buffers: along the optimizer dimension, then the gradients one."""

    def __init__(self, flats: list[Flat], codec: str | None, feedback: bool, overlap: bool) -> None:
        """overlap: weights may arrive after spread()."""
        self._flats, self._codec, self._overlap = flats, codec, overlap
        self._differences = feedback and collectives.is_lossy(codec)
        self._stages = [self._stages_of(flat) for flat in flats]

    def _stages_of(self, flat: Flat) -> list[UpdateStage]:
        optimizer, gradients, middle = flat.grid.optimizer, flat.grid.gradients, flat.own(GRADIENTS)
        if self._differences and optimizer.size > 1 and gradients.size > 1:
            middle = middle.clone()  # the second stage has receivers that lack something else
        stages = (UpdateStage(optimizer, middle), UpdateStage(gradients, flat.weights))
        return [stage for stage in stages if stage.along.size > 1]

    def spread(self, exactly: bool = False) -> None:
        """A collective of all ranks. exactly: without a codec, so that nothing is lost.

        With overlap, units wait for their weights before their next forward pass. Until arrive(),
        the weights are of neither step.
        """
        differences = self._differences and not exactly
        running: InFlight[Spread] = InFlight()
        for flat, stages in zip(self._flats, self._stages, strict=True):
            if not stages:
                flat.weights.copy_(flat.master)
                continue
            flat.update = Spread(flat.master, stages, None if exactly else self._codec, differences)
            if differences and not self._overlap:
                running.advance()  # few buffers of differences at a time
            running.append(flat.update)
        if self._overlap:
            for flat, stages in zip(self._flats, self._stages, strict=True):
                for _ in stages[1:]:
                    flat.update.advance()
        else:
            running.finish()
            for flat in self._flats:
                flat.update = None

    def arrive(self) -> None:
        """Waits until all weights are those of the last spread()."""
        for flat in self._flats:
            flat.arrive()

    def state(self) -> list[torch.Tensor]:
        """This rank's part of what ranks hold, in host memory; empty without differences."""
        stages = (stage for each in self._stages for stage in each if self._differences)
        return [stage.own.to("cpu", copy=True) for stage in stages]

    def restore(self, state: list[torch.Tensor]) -> None:
        """Lets ranks hold what they held at state(). A collective of all ranks."""
        if not self._differences:
            return self.spread()
        held = iter(state)
        for flat, stages in zip(self._flats, self._stages, strict=True):
            if not stages:
                flat.weights.copy_(flat.master)
            for stage in stages:
                stage.own.copy_(next(held))
                collectives.wait(collectives.gather(stage.held, stage.own, stage.along, None))

    def bytes(self) -> int:
        """Bytes of held weights besides those of the flat buffers."""
        own = {flat.weights.untyped_storage().data_ptr() for flat in self._flats}
        found = (stage.held for each in self._stages for stage in each)
        return sum(h.nbytes for h in found if h.untyped_storage().data_ptr() not in own)
