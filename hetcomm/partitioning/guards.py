"""Methods of the module and the optimizer that would see pieces of parameters only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from hetcomm import _core

MARK = "_hetcomm_partition"


def is_guarded(module: nn.Module) -> bool:
    """Whether the module is partitioned, or part of a partitioned one."""
    return MARK in module.__dict__


def _refuse(what: str, instead: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise _core.InvalidArgumentError(
            f"{what}: expected a module that is not partitioned; this rank has pieces of it only; "
            f"{instead}"
        )

    return refuse


def guard(
    module: nn.Module,
    optimizer: Optimizer,
    zero_grad: Callable[[], None],
    is_whole: Callable[[], bool],
) -> None:
    """Refuses what needs whole parameters, and makes zero_grad() clear the partition's gradients.

    is_whole: whether parameters are whole now, so that module.state_dict() may work.
    """
    refuse_state = _refuse(
        "module.state_dict()",
        "call Partition.state_dict() or full_state_dict(), or call it inside Partition.gathered()",
    )

    def before_state(*_: Any) -> None:
        if not is_whole():
            refuse_state()

    refuse_load = _refuse("module.load_state_dict()", "call Partition.load_state_dict()")
    for each in module.modules():
        setattr(each, MARK, True)
        each.register_state_dict_pre_hook(before_state)
        each._register_load_state_dict_pre_hook(refuse_load)
        each.__dict__["__deepcopy__"] = _refuse("copy.deepcopy()", "copy before partition()")
        each.__dict__["_apply"] = _refuse("module.to()", "move the module before partition()")
    refuse = _refuse("optimizer.state_dict()", "call Partition.state_dict()")
    optimizer.register_state_dict_pre_hook(refuse)
    refuse = _refuse("optimizer.load_state_dict()", "call Partition.load_state_dict()")
    optimizer.register_load_state_dict_pre_hook(refuse)

    def clear(set_to_none: bool = True) -> None:
        zero_grad()

    module.__dict__["zero_grad"] = clear
    optimizer.__dict__["zero_grad"] = clear
