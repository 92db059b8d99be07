"""Layouts whose replicas have unequal shares of the batch: every pool serves whole pipelines, and a
faster pool takes more micro-batches.

The tree of a search has equal shares alone. These layouts come beside it and its proof: for each
number of stages and micro-batch one division of layers, and one of the batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import product

import numpy as np

from hetcomm.plan.layout import Layout, Stage
from hetcomm.plan.search.best_first import Found
from hetcomm.plan.search.nodes import Candidate, Search
from hetcomm.plan.search.search import PricedLayout, fitting, predicted
from hetcomm.plan.search.settings import Settings
from hetcomm.plan.search.shapes import Part, Shape

MOST = 8  # shapes, the most promising ones; each of their layouts is priced


def with_shares(root: Search, found: Found[PricedLayout], top: int) -> Found[PricedLayout]:
    """The best layouts, with those of unequal shares that are among them."""
    estimates = sorted(_shapes(root), key=lambda each: each[0])
    best = list(found.best)
    least = best[0][0] if best else np.inf
    for _, shape, shares in [each for each in estimates if each[0] < least][:MOST]:
        layouts = _priced(root, shape, shares)
        priced = min(layouts, key=lambda each: each.prediction.seconds, default=None)
        if priced is not None:
            best.append((priced.prediction.seconds, priced))
    best.sort(key=lambda each: each[0])
    return Found(best[:top], found.bound, found.priced, found.opened, found.cut)


def _shapes(root: Search) -> Iterator[tuple[float, Shape, tuple[int, ...]]]:
    """Each with the seconds of its passes, about, and the micro-batches of each replica."""
    space, pools = root.space, root.space.pools
    if len(pools) < 2:
        return
    for stages, micro_batch, tensor in product(
        range(1, space.layers + 1), space.micro_batches, space.tensors
    ):
        parts, seconds = [], []
        for index, pool in enumerate(pools):
            count = pool.capacity(tensor) // stages
            each = root.block_seconds(index, tensor, 1, micro_batch)
            if (
                each is None
                or not count
                or (space.every_rank and count * stages * tensor != pool.ranks)
            ):
                break
            part = Part(index, tensor, 1, count)
            parts.append(part)
            whole = float(np.add(*root.terms.layer_seconds(part, micro_batch)).sum())
            seconds += [whole / stages] * count
        together, rest = divmod(space.batch, micro_batch)
        if len(parts) < len(pools) or rest or together < len(seconds):
            continue
        shares = _divided(together, seconds, stages)
        if len(set(shares)) > 1:
            ends = (n + stages - 1 for n in shares)
            about = max(n * each for n, each in zip(ends, seconds, strict=True))
            yield about, Shape((tuple(parts),) * stages, micro_batch), shares


def _divided(together: int, seconds: list[float], stages: int) -> tuple[int, ...]:
    """Micro-batches of each replica, one at least, so that the last one ends early."""
    shares = [1] * len(seconds)
    heap = [((1 + stages) * each, r) for r, each in enumerate(seconds)]
    heapq.heapify(heap)
    for _ in range(together - len(seconds)):
        r = heap[0][1]
        shares[r] += 1
        heapq.heapreplace(heap, ((shares[r] + stages) * seconds[r], r))
    return tuple(shares)


def _priced(root: Search, shape: Shape, shares: tuple[int, ...]) -> Iterator[PricedLayout]:
    """Of the levels of optimizer states and of recompute. The layers are divided by the slowest
    pool's times."""
    problem, permitted, stages = root.terms.problem, root.settings_space, len(shape.stages)
    slowest = max(
        shape.stages[0],
        key=lambda part: root.block_seconds(part.pool, part.tensor, 1, shape.micro_batch) or 0.0,
    )
    times = np.add(*root.terms.layer_seconds(slowest, shape.micro_batch))
    places = np.cumsum(times) - times / 2
    # The layer whose middle passes an equal part of the whole begins a stage.
    marks = np.searchsorted(places, times.sum() * np.arange(1, stages) / stages)
    ends = [max(int(mark), s + 1) for s, mark in enumerate(marks)] + [len(times)]
    ends = [min(end, len(times) - (stages - 1 - s)) for s, end in enumerate(ends)]
    spans = [[(first, end)] for first, end in zip([0, *ends], ends, strict=False)]
    if any(first >= end for [(first, end)] in spans):
        return
    placed = shape.place(problem.pools)
    for recompute, states, codec in product(
        permitted.recompute, permitted.levels, permitted.codecs
    ):
        settings = Settings(permitted.schedules[0], 1, recompute, "rank", states, codec)
        layout = Layout(
            tuple(Stage(tuple(span), each) for span, each in zip(spans, placed, strict=True)),
            root.space.batch, shape.micro_batch, settings.schedule, recompute, "rank", states,
            states, codec, overlap_optimizer=True, shares=shares,
        )  # fmt: skip
        fits = fitting(problem, layout, permitted.levels)
        if fits is not None:
            yield PricedLayout(
                Candidate(shape, settings, spans, fits), fits, predicted(problem, fits)
            )
