"""PyTorch's default group ends with `destroy_process_group()`: no function keeps it."""

import sys
from inspect import isfunction

import torch.distributed as dist


def free_default_group() -> None:
    """Let no function of `torch.distributed.nn` keep the default group; None as an argument means it as well.

    It is a default argument, evaluated when the module is imported, which PyTorch's compiler does at the latest. A
    group that is there by then would be kept for good, and its threads may end the process by SIGABRT at exit. It is
    called when training with AutoByte ends, and not before: a script that trains with DDP alone is left as it is.
    """
    functional = sys.modules.get("torch.distributed.nn.functional")
    for function in filter(isfunction, vars(functional).values() if functional is not None else ()):
        if function.__defaults__:
            kept = (None if isinstance(value, dist.ProcessGroup) else value for value in function.__defaults__)
            function.__defaults__ = tuple(kept)
