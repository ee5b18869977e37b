"""Whether a process, a model and an optimizer can take part in training."""

import logging
import os

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autobyte.errors import InputError

log = logging.getLogger("autobyte")


def is_off(group: dist.ProcessGroup | None, *, enabled: bool) -> bool:
    """Whether there is nothing to do; the log says why.

    Raises:
        InputError: torch.distributed is not initialised, and nothing says that it need not be.
    """
    why = disabled_because(group, enabled=enabled)
    if why and dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1:
        log.warning("AutoByte is off: %s; ranks train on their own, nothing is averaged", why)
    elif why:
        log.info("AutoByte is off: %s", why)
    return why is not None


def is_rank_0(group: dist.ProcessGroup | None) -> bool:
    """Whether this process is the first of its group; by torchrun's count where torch.distributed has not begun."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(group) == 0
    return os.environ.get("RANK", "0") == "0"


def disabled_because(group: dist.ProcessGroup | None, *, enabled: bool) -> str | None:
    """Why there is nothing to do, or None.

    Raises:
        InputError: torch.distributed is not initialised, and nothing says that it need not be.
    """
    if not enabled:
        return "enabled=False"
    if os.environ.get("AUTOBYTE_DISABLE", "") not in ("", "0"):
        return "AUTOBYTE_DISABLE is set"
    if not dist.is_available() or not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError("call torch.distributed.init_process_group() before DistributedOptimizer")
        return "a single process"
    return "a single rank" if dist.get_world_size(group) == 1 else None


#: Wrappers that do with gradients what is done here, or cut them into shards that are no rank's whole.
OTHERS = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}


def travelling(optimizer: Optimizer, model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's parameters that the optimizer trains, once each, under their first names.

    Raises:
        InputError: there are none, the optimizer trains parameters that are not the model's, or their gradients
            cannot be averaged here.
    """
    for module in model.modules():
        if other := OTHERS.intersection(kind.__name__ for kind in type(module).__mro__):
            raise InputError(
                f"the model is wrapped by {other.pop()}, which moves gradients itself: hand in the bare one"
            )
    trained = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    parameters = {name: p for name, p in model.named_parameters() if p in trained}
    if not parameters:
        raise InputError(f"the optimizer trains no parameter of '{type(model).__name__}'")
    foreign = len(trained) - len(parameters)
    if foreign:
        raise InputError(
            f"the optimizer trains {foreign} parameters that are not of '{type(model).__name__}': hand in "
            "torch.nn.ModuleList([…]) of all models and losses that it trains"
        )
    elsewhere = next((name for name, p in parameters.items() if p.device.type not in ("cpu", "cuda")), None)
    if elsewhere is not None:
        device = parameters[elsewhere].device
        raise InputError(f"parameter '{elsewhere}' is on {device}: gradients travel from CPUs and CUDA devices")
    sharded = next((name for name, p in parameters.items() if type(p).__name__ == "DTensor"), None)
    if sharded is not None:
        raise InputError(f"parameter '{sharded}' is a DTensor: sharded parameters are no data parallelism")
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise InputError(f"'{name}' makes sparse gradients, which cannot be cut into blocks; say sparse=False")
    return parameters
