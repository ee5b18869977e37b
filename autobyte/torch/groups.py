"""PyTorch's default group ends with `destroy_process_group()`: no function keeps it."""

from inspect import isfunction

import torch.distributed as dist
from torch.distributed.nn import functional


def free_default_group() -> None:
    """Let no function of `torch.distributed.nn` keep the default group; None as an argument means it as well.

    It is a default argument, evaluated when the module is imported, which PyTorch's compiler does at the latest. A
    group that is there by then would be kept for good, and its threads may end the process by SIGABRT at exit. So
    the module is imported here, and a group that was there before is replaced.
    """
    for function in filter(isfunction, vars(functional).values()):
        if function.__defaults__:
            kept = (None if isinstance(value, dist.ProcessGroup) else value for value in function.__defaults__)
            function.__defaults__ = tuple(kept)
