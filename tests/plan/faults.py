"""Faults to plant into correct plans.

Each function changes `plans` in place, and returns whether it found a place for the fault. A plan
with the fault is certainly wrong.
"""

import random
from collections.abc import Callable, Iterator

from hetcomm._core import Plan, Range, Space, Step, StepKind

Fault = Callable[[random.Random, list[Plan]], bool]
ISLAND = {
    StepKind.island_all_reduce,
    StepKind.island_reduce_scatter,
    StepKind.island_all_gather,
    StepKind.island_all_to_all,
}


def remove(plan: Plan, index: int) -> None:
    """Removes a step. Steps that waited for it wait for its predecessors."""
    steps = plan.steps
    inherited = steps.pop(index).after
    for step in steps:
        after = {a for a in step.after if a != index}
        if index in step.after:
            after.update(inherited)
        step.after = sorted(a - (a > index) for a in after)
    plan.steps = steps


def dropped_send(rng: random.Random, plans: list[Plan]) -> bool:
    return _drop(rng, plans, StepKind.send)


def dropped_recv(rng: random.Random, plans: list[Plan]) -> bool:
    return _drop(rng, plans, StepKind.recv)


def wrong_peer(rng: random.Random, plans: list[Plan]) -> bool:
    for plan, index in _places(rng, plans, {StepKind.send, StepKind.recv}):
        others = [r for r in range(plan.size) if r not in (plan.rank, plan.steps[index].peer)]
        if others:
            return _change(plan, index, peer=rng.choice(others))
    return False


def swapped_sources(rng: random.Random, plans: list[Plan]) -> bool:
    """Two sends of a rank swap their sources."""
    for plan, first in _places(rng, plans, {StepKind.send}):
        source = plan.steps[first].sources[0]
        for second, step in enumerate(plan.steps):
            if step.kind != StepKind.send or step.sources[0] == source:
                continue
            if step.sources[0].count == source.count and step.sources[0].space == source.space:
                _change(plan, first, sources=step.sources)
                return _change(plan, second, sources=[source])
    return False


def shifted_target(rng: random.Random, plans: list[Plan]) -> bool:
    for plan, index in _places(rng, plans, {StepKind.recv, StepKind.reduce, StepKind.copy}):
        target = plan.steps[index].target
        target.offset += rng.choice((-1, 1)) * target.dtype.size
        return _change(plan, index, target=target)
    return False


def shifted_source(rng: random.Random, plans: list[Plan]) -> bool:
    for plan, index in _places(rng, plans, {StepKind.send, StepKind.reduce, StepKind.copy}):
        sources = plan.steps[index].sources
        sources[rng.randrange(len(sources))].offset += rng.choice((-1, 1)) * sources[0].dtype.size
        return _change(plan, index, sources=sources)
    return False


def short_source(rng: random.Random, plans: list[Plan]) -> bool:
    for plan, index in _places(rng, plans, {StepKind.send, StepKind.reduce, StepKind.copy}):
        sources = plan.steps[index].sources
        sources[0].count -= 1
        return _change(plan, index, sources=sources)
    return False


def out_of_range(rng: random.Random, plans: list[Plan]) -> bool:
    for plan, index in _places(rng, plans, {StepKind.recv, StepKind.reduce, StepKind.copy}):
        target = plan.steps[index].target
        target.offset = 2**62
        return _change(plan, index, target=target)
    return False


def written_input(rng: random.Random, plans: list[Plan]) -> bool:
    if plans[0].spec.in_place:
        return False
    for plan, index in _places(rng, plans, {StepKind.recv, StepKind.reduce, StepKind.copy}):
        count = plan.steps[index].target.count
        target = Range(Space.input, 0, count, plan.spec.dtype)
        readable = count <= plan.spec.buffer_counts(plan.rank, plan.size)[0]
        if readable and target not in plan.steps[index].sources:
            return _change(plan, index, target=target)
    return False


def double_count(rng: random.Random, plans: list[Plan]) -> bool:
    for plan, index in _places(rng, plans, {StepKind.reduce}):
        if plan.steps[index].scaled:  # a step of one source is another fault
            continue
        sources = plan.steps[index].sources
        return _change(plan, index, sources=[*sources, rng.choice(sources)])
    return False


def missing_summand(rng: random.Random, plans: list[Plan]) -> bool:
    for plan, index in _places(rng, plans, {StepKind.reduce}):
        sources = plan.steps[index].sources
        sources.pop(rng.randrange(len(sources)))
        return _change(plan, index, sources=sources)
    return False


def wrong_owner(rng: random.Random, plans: list[Plan]) -> bool:
    """A piece has another member as source or target, on all members alike."""
    kinds = ISLAND - {StepKind.island_all_reduce}
    for plan, index in _places(rng, plans, kinds):
        ordinal = [i for i, step in enumerate(plan.steps) if step.kind in ISLAND].index(index)
        number = rng.randrange(len(plan.steps[index].pieces))
        right, wrong = (plan.steps[index].pieces[number] for _ in range(2))
        end = "to" if right.to >= 0 else "from_"
        setattr(wrong, end, rng.choice([m for m in plan.members if m != getattr(right, end)]))
        steps = {
            member: [i for i, step in enumerate(plans[member].steps) if step.kind in ISLAND][
                ordinal
            ]
            for member in plan.members
        }
        lists = {member: plans[member].steps[step].pieces for member, step in steps.items()}
        shared = all(right in pieces for pieces in lists.values())
        for member, pieces in lists.items():
            place = pieces.index(right) if right in pieces else len(pieces)
            listed = shared or member in (wrong.from_, wrong.to)
            pieces[place : place + 1] = [wrong] if listed else []
            _change(plans[member], steps[member], pieces=pieces)
        return True
    return False


def reordered_island_steps(rng: random.Random, plans: list[Plan]) -> bool:
    for plan, first in _places(rng, plans, ISLAND):
        a = plan.steps[first]
        for second in range(first + 1, len(plan.steps)):
            b = plan.steps[second]
            if b.kind in ISLAND and (a.kind, a.pieces) != (b.kind, b.pieces):
                _change(plan, first, kind=b.kind, pieces=b.pieces)
                return _change(plan, second, kind=a.kind, pieces=a.pieces)
    return False


def removed_dependency(rng: random.Random, plans: list[Plan]) -> bool:
    """Removes the only order between two steps that touch the same elements."""
    for plan, index in _places(rng, plans, set(StepKind.__members__.values())):
        after = plan.steps[index].after
        rng.shuffle(after)
        for before in after:
            kept = [step for step in after if step != before]
            if before in _ancestors(plan, index, kept):
                continue
            if _conflict(plan, before, index):
                return _change(plan, index, after=kept)
    return False


def crossed_rendezvous(rng: random.Random, plans: list[Plan]) -> bool:
    """Two ranks that exchange messages both receive before they send."""
    for plan, send in _places(rng, plans, {StepKind.send}):
        other = plans[plan.steps[send].peer]
        pairs = [(plan, other.rank), (other, plan.rank)]
        firsts = [
            [
                next((i for i, s in enumerate(p.steps) if s.kind == kind and s.peer == peer), None)
                for kind in (StepKind.send, StepKind.recv)
            ]
            for p, peer in pairs
        ]
        if any(index is None for pair in firsts for index in pair):
            continue
        if all(_waitable(p, s, r) for (p, _), (s, r) in zip(pairs, firsts, strict=True)):
            for (p, _), (s, r) in zip(pairs, firsts, strict=True):
                _put_after(p, s, r)
            return True
    return False


def _every_rank_adds(plan: Plan) -> bool:
    """Whether every rank adds the values itself, in a dtype in which the order matters."""
    spec = plan.spec
    adds = spec.collective.name == "all_reduce" and not plan.algorithm.endswith(
        ("scatter", "nested")
    )
    return adds and spec.dtype.name != "int8"


def regrouped_sum(rng: random.Random, plans: list[Plan]) -> bool:
    """One rank adds three values in another order than the other ranks."""
    if not _every_rank_adds(plans[0]):
        return False
    for plan, index in _places(rng, plans, {StepKind.reduce}):
        sources = plan.steps[index].sources
        if len(sources) >= 3 and plan.steps[index].target.space == Space.output:
            return _change(plan, index, sources=[*sources[1:], sources[0]])
    return False


def rounded_in_between(rng: random.Random, plans: list[Plan]) -> bool:
    """One rank adds three values in two steps instead of one. 16-bit floats are rounded twice."""
    if not _every_rank_adds(plans[0]):
        return False
    for plan, index in _places(rng, plans, {StepKind.reduce}):
        step = plan.steps[index]
        first, *others = step.sources
        if len(step.sources) < 3 or step.target.space != Space.output or step.target in others:
            continue
        half = Step(StepKind.reduce, sources=[first, others[0]], target=step.target)
        half.after = step.after
        steps = plan.steps
        steps[index].sources = [step.target, *others[1:]]
        steps[index].after = [*step.after, index]
        for later in steps[index + 1 :]:
            later.after = [before + (before >= index) for before in later.after]
        plan.steps = [*steps[:index], half, *steps[index:]]
        return True
    return False


def missing_scale(rng: random.Random, plans: list[Plan]) -> bool:
    """All members of an island agree on the missing scale."""
    for plan, index in _places(rng, plans, set(StepKind.__members__.values())):
        if not plan.steps[index].scaled:
            continue
        _change(plan, index, scaled=False)
        if plan.steps[index].kind in ISLAND:  # the only such step of all ranks
            for other in plans:
                _change(other, index, scaled=False)
        return True
    return False


def scaled_twice(rng: random.Random, plans: list[Plan]) -> bool:
    spec = plans[0].spec
    rank = rng.randrange(len(plans)) if spec.collective.name != "reduce" else spec.root
    _, count = spec.buffer_counts(rank, len(plans))
    if not any(step.scaled for plan in plans for step in plan.steps) or count == 0:
        return False
    output = Range(Space.output, 0, count, spec.dtype)
    steps = plans[rank].steps
    again = Step(
        StepKind.reduce, sources=[output], target=output, after=list(range(len(steps))), scaled=True
    )
    plans[rank].steps = [*steps, again]
    return True


def scaled_sum(rng: random.Random, plans: list[Plan]) -> bool:
    """Scales contributions of an operation without a scale."""
    if plans[0].spec.op.name in ("average", "premul_sum"):
        return False
    for plan, index in _places(rng, plans, {StepKind.reduce}):
        return _change(plan, index, scaled=True)
    return False


FAULTS: dict[Fault, str] = {
    missing_scale: "scaled once|all contributions scaled or none",
    scaled_twice: "expected contributions not yet scaled",
    scaled_sum: "no scale",
    dropped_send: "expected a matching send",
    dropped_recv: "expected a matching recv",
    wrong_peer: "expected a matching|repeats the tag",
    swapped_sources: "expected",
    shifted_target: "expected",
    shifted_source: "expected",
    short_source: "elements, got|elements; got",
    out_of_range: "expected a range within",
    written_input: "expected the input to be kept",
    double_count: "twice",
    missing_summand: "expected",
    wrong_owner: "expected",
    reordered_island_steps: "differs from",
    removed_dependency: "expected the later step to wait",
    crossed_rendezvous: "deadlock",
    regrouped_sum: "another order",
    rounded_in_between: "rounded elsewhere",
}


def _places(
    rng: random.Random, plans: list[Plan], kinds: set[StepKind]
) -> Iterator[tuple[Plan, int]]:
    """The steps of these kinds in random order, without empty messages, whose ranges do not
    matter."""
    places = [
        (plan, index)
        for plan in plans
        for index, step in enumerate(plan.steps)
        if step.kind in kinds
        and any(each.count for each in [*step.reads(plan.rank), *step.writes(plan.rank)])
    ]
    rng.shuffle(places)
    yield from places


def _change(plan: Plan, index: int, **fields: object) -> bool:
    steps = plan.steps
    for field, value in fields.items():
        setattr(steps[index], field, value)
    plan.steps = steps
    return True


def _drop(rng: random.Random, plans: list[Plan], kind: StepKind) -> bool:
    for plan, index in _places(rng, plans, {kind}):
        remove(plan, index)
        return True
    return False


def _ancestors(plan: Plan, index: int, after: list[int]) -> set[int]:
    """The steps that complete before step `index` starts, if that waits for `after`."""
    steps = plan.steps
    island = [i for i, step in enumerate(steps) if step.kind in ISLAND]
    found: set[int] = set()
    to_visit = list(after)
    if index in island[1:]:
        to_visit.append(island[island.index(index) - 1])
    while to_visit:
        step = to_visit.pop()
        if step in found:
            continue
        found.add(step)
        to_visit += steps[step].after
        if step in island[1:]:
            to_visit.append(island[island.index(step) - 1])
    return found


def _overlap(a: Range, b: Range) -> bool:
    return a.space == b.space and a.offset < b.end and b.offset < a.end


def _conflict(plan: Plan, first: int, second: int) -> bool:
    a, b, rank = plan.steps[first], plan.steps[second], plan.rank
    pairs = [
        *((x, y) for x in a.writes(rank) for y in b.reads(rank)),
        *((x, y) for x in a.writes(rank) for y in b.writes(rank)),
        *((x, y) for x in a.reads(rank) for y in b.writes(rank)),
    ]
    return any(_overlap(x, y) for x, y in pairs)


def _waitable(plan: Plan, send: int, recv: int) -> bool:
    """Whether the send can wait for the recv without a cycle in the plan."""
    return send not in _ancestors(plan, recv, plan.steps[recv].after)


def _put_after(plan: Plan, send: int, recv: int) -> None:
    """Makes the send wait for the recv. Moves steps so that each still follows its predecessors."""
    steps = plan.steps
    steps[send].after = sorted({*steps[send].after, recv})
    order: list[int] = []

    def place(index: int) -> None:
        if index in order:
            return
        for before in steps[index].after:
            place(before)
        order.append(index)

    for index in range(len(steps)):
        place(index)
    moved: list[Step] = []
    for index in order:
        steps[index].after = sorted(order.index(before) for before in steps[index].after)
        moved.append(steps[index])
    plan.steps = moved
