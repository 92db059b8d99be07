"""The order of ranks for launchers that divide the ranks by formulas, as Megatron-LM and Holmes."""

from __future__ import annotations

from hetcomm import _core
from hetcomm.plan.layout import Layout


def degrees(layout: Layout) -> tuple[int, int, int, int]:
    """The pipeline, data, context and tensor degrees.

    Raises hetcomm.InvalidArgumentError for replicas of unlike degrees.
    """
    found = {
        (replica.context, replica.tensor): (s, r)
        for s, stage in enumerate(layout.stages)
        for r, replica in enumerate(stage.replicas)
    }
    if len(found) > 1:
        places = ", ".join(
            f"{context} and {tensor} in replica {r} of stage {s}"
            for (context, tensor), (s, r) in found.items()
        )
        raise _core.InvalidArgumentError(
            f"layout: expected equal context and tensor degrees in all replicas, got {places}; "
            "take the groups of the Job instead, or plan with equal degrees"
        )
    ((context, tensor),) = found
    return len(layout.stages), layout.replicas, context, tensor


def rank_order(layout: Layout) -> list[int]:
    """The layout's rank at each rank of such a launcher, as a list of all ranks.

    With W ranks, P stages and tensor degree T, these launchers give stage i the ranks from i * W/P
    on, T ranks in a row to a tensor group, and `range(i * W/P + j, (i + 1) * W/P, T)` to a data
    group (Holmes, arXiv 2312.03549). Start the launcher's rank m where rank_order(layout)[m] runs:
    a stage then has the ranks that the layout gives it, so its data groups have NICs of one kind
    if the stage has. The context rank varies faster than the data rank.

    Raises hetcomm.InvalidArgumentError for replicas of unlike degrees.
    """
    degrees(layout)
    return [rank for stage in layout.stages for replica in stage.replicas for rank in replica.ranks]
