"""Seconds and bytes of stages by range of layers: exact, or never more than the prediction's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcomm.plan.layout import LEVELS
from hetcomm.plan.model import Model
from hetcomm.plan.prediction.network import Network
from hetcomm.plan.prediction.runtime import Runtime
from hetcomm.plan.profile import Profile
from hetcomm.plan.search.division import Floats, sums_of
from hetcomm.plan.search.pools import Pool
from hetcomm.plan.search.settings import Settings
from hetcomm.plan.search.shapes import Part

Indices = NDArray[np.intp]
# The ranks that share weights, and those that share gradients and optimizer states.
Shares = tuple[int, int]


@dataclass(frozen=True)
class Problem:
    """The job to plan. devices: the kind of each rank's device. scaled: whether tensor degrees
    without measurements count."""

    model: Model
    profile: Profile
    network: Network
    devices: Sequence[str]
    pools: Sequence[Pool]
    runtime: Runtime
    scaled: bool = False


class Terms:
    """Tables of a problem, computed once each. Matrices are [first layer, end] of a stage."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.probed: dict[tuple[object, ...], Any] = {}  # by Probes
        self._seconds: dict[tuple[object, ...], tuple[Floats, Floats]] = {}
        self._degrees: dict[str, list[int]] = {}
        self._parameters: dict[int, Floats] = {}
        self._kept_bytes: dict[tuple[int, bool], Floats] = {}

    @cached_property
    def kinds(self) -> list[str]:
        """The kind of each layer."""
        return [self.problem.model.kind(layer) for layer in range(self.problem.model.layers)]

    @cached_property
    def alike(self) -> tuple[tuple[Indices, Indices], Indices]:
        """One [first, end] of each kind of range, and [first, end] -> its kind.

        Alike ranges have equally many layers, and both or none have the embedding, or the head.
        """
        layers = len(self.kinds)
        first, end = np.indices((layers + 1, layers + 1))
        code = 4 * np.maximum(end - first, 0) + 2 * (first == 0) + (end == layers)
        _, places, kinds = np.unique(code, return_index=True, return_inverse=True)
        row, column = np.unravel_index(places, code.shape)
        return (row, column), np.asarray(kinds).reshape(code.shape)

    def degrees(self, kind: str) -> list[int]:
        """The measured tensor degrees of a kind of device."""
        if kind not in self._degrees:
            rows = self.problem.profile.rows
            self._degrees[kind] = sorted({row.tensor for row in rows if row.device == kind})
        return self._degrees[kind]

    def block_seconds(self, pool: int, tensor: int, context: int, samples: int) -> float | None:
        """Of a block forward and backward, without recompute; None for impossible degrees."""
        model, kind = self.problem.model, self.problem.pools[pool].kind
        measured = self.problem.scaled or tensor in self.degrees(kind)
        if model.groups % tensor or model.sequence % context or not measured:
            return None
        return sum(self.block_passes(Part(pool, tensor, context, 1), samples))

    def block_passes(self, part: Part, samples: int) -> tuple[float, float]:
        """Seconds of a block forward and backward, without recompute."""
        forward, backward = self.layer_seconds(part, samples)
        return float(forward[1]), float(backward[1])  # layer 0 is the embedding

    def layer_seconds(
        self, part: Part, samples: int, recompute: bool = False
    ) -> tuple[Floats, Floats]:
        """By layer, forward and backward; without what context ranks exchange."""
        kind = self.problem.pools[part.pool].kind
        key = (kind, part.tensor, part.context, samples, recompute)
        if key not in self._seconds:
            layers = {
                layer: self.problem.profile.layer(
                    self.problem.model, kind, layer, samples, part.tensor
                )
                for layer in dict.fromkeys(self.kinds)
            }
            forward = np.array([layers[layer].forward for layer in self.kinds]) / part.context
            backward = np.array([layers[layer].backward for layer in self.kinds]) / part.context
            if recompute:
                backward = backward + np.where([k == "block" for k in self.kinds], forward, 0.0)
            self._seconds[key] = (forward, backward)
        return self._seconds[key]

    def parameters(self, tensor: int) -> Floats:
        """[first, end] -> parameters of a rank. A tied head far from the embedding has a copy."""
        if tensor not in self._parameters:
            model = self.problem.model
            found = sums_of([model.parameters(kind, tensor) for kind in self.kinds])
            if model.tied:
                found[1:, -1] += model.vocabulary * model.hidden // tensor
            self._parameters[tensor] = found
        return self._parameters[tensor]

    def degree(self, parts: Sequence[Part], level: str) -> int:
        """At most so many ranks of a level share a stage's states."""
        group = sum(part.count * part.context for part in parts)
        if level == "rank":
            return 1
        if level != "host":
            return group
        return min(group, max(self.problem.pools[p.pool].widest // p.tensor for p in parts))

    def fixed_memory(
        self, part: Part, samples: int, settings: Settings, shares: Shares, pipelined: bool
    ) -> Floats:
        """[first, end] -> bytes of a rank of a part without kept activations, at least; its
        gradients are partitioned as the optimizer states are."""
        working = self._working(part.tensor, settings.recompute)
        moving = 2 * self.problem.model.output_bytes() if pipelined else 0.0
        overhead = self.problem.runtime.overhead(self.problem.pools[part.pool].kind)
        states = self.parameters(part.tensor) * self._of_parameter(shares)
        return np.asarray(states + samples / part.context * (working + moving) + overhead)

    def kept_memory(self, part: Part, samples: int, settings: Settings) -> Floats:
        """[first, end] -> bytes of activations that a pass of a chunk keeps, at least."""
        kept = self._kept(part.tensor, settings.recompute)
        if settings.chunks > 1:  # a share of the layers; one may be the embedding, one the head
            blocks = sums_of([1] * len(self.kinds)) // settings.chunks
            blocks[0] -= 1
            blocks[:, -1] -= 1
            kept = kept[1, 2] * np.maximum(blocks, 0)
        return np.asarray(samples / part.context * kept)

    def chunk_memory(
        self, part: Part, samples: int, settings: Settings, shares: Shares,
        chunks: Sequence[tuple[int, int]], held: Sequence[int],
    ) -> float:  # fmt: skip
        """Bytes of a rank with these chunks, at least. held: of each chunk, its passes whose
        activations are kept."""
        kept = self._kept(part.tensor, settings.recompute)
        own = sum(count * kept[span] for count, span in zip(held, chunks, strict=True))
        working = max(self._working(part.tensor, settings.recompute)[span] for span in chunks)
        states = sum(self.parameters(part.tensor)[span] for span in chunks)
        fixed = self.problem.runtime.overhead(self.problem.pools[part.pool].kind)
        each = self._of_parameter(shares)
        return float(states * each + samples / part.context * (own + working) + fixed)

    def _of_parameter(self, shares: Shares) -> float:
        """Bytes of weight, gradient and states for each parameter of a rank."""
        model = self.problem.model
        return (
            model.weight_bytes / shares[0] + (model.gradient_bytes + model.state_bytes) / shares[1]
        )

    def _kept(self, tensor: int, recompute: bool) -> Floats:
        """[first, end] -> bytes that one sample keeps for the backward pass."""
        if (tensor, recompute) not in self._kept_bytes:
            model = self.problem.model
            sizes = {
                kind: model.output_bytes()
                if recompute and kind == "block"
                else self.problem.profile.kept_bytes(model, kind, tensor)
                for kind in dict.fromkeys(self.kinds)
            }
            self._kept_bytes[tensor, recompute] = sums_of([sizes[kind] for kind in self.kinds])
        return self._kept_bytes[tensor, recompute]

    def _working(self, tensor: int, recompute: bool) -> Floats:
        """[first, end] -> bytes that a sample's backward pass needs beside what was kept."""
        model, layers = self.problem.model, len(self.kinds)
        size = {kind: model.working_bytes(kind, tensor) for kind in dict.fromkeys(self.kinds)}
        found = np.full((layers + 1, layers + 1), size.get("block", 0.0))
        found[0] = np.maximum(found[0], size["embedding"])
        found[0, 1] = size["embedding"]
        found[:, -1] = np.maximum(found[:, -1], size["head"])
        found[layers - 1, -1] = size["head"]
        if recompute:
            found += model.kept_bytes("block", tensor)
            found[0, 1] = size["embedding"]
            found[layers - 1, -1] = size["head"]
        return found

    def limit(self, part: Part) -> float:
        """Bytes of memory of a part's devices."""
        return self.problem.profile.devices[self.problem.pools[part.pool].kind].memory


def distinct_levels(problem: Problem) -> list[str]:
    """The levels that differ on this cluster, narrowest first. Equal ones have the later name, but
    each rank alone is "rank", which every runtime permits."""
    ranks = [rank for pool in problem.pools for host in pool.hosts for rank in host]
    found: dict[frozenset[frozenset[int]], str] = {}
    for level in LEVELS:
        parts: dict[object, set[int]] = {}
        for rank in ranks:
            parts.setdefault(problem.network.domain(rank, level), set()).add(rank)
        key = frozenset(map(frozenset, parts.values()))
        if found.get(key) != "rank":
            found[key] = level
    return [found[parts] for parts in sorted(found, key=len, reverse=True)]
