"""What is loaded while training: on every rank, or on one alone; whether ranks still train the same model."""

from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autobyte.exchange.control import Control
from autobyte.torch.exchange.join import is_sharded, numbers_of

PARTS = ("parameters", "optimizer state", "hyper-parameters")
PRIME = 1_000_003  # so that two tensors that change places are seen
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Resumption:
    """Lets ranks load whenever they like, alone or together, and compares them some steps later.

    A rank that has loaded says so with the flags of its next step. All ranks see that after the same step. They then
    compare fingerprints, and take up the plan that rank 0 has loaded.

    Args:
        parameters: that travel.
        optimizer: the user's. What it has learned before counts as loaded.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], optimizer: Optimizer) -> None:
        self._parameters = list(parameters)
        self._optimizer = optimizer
        self._loaded = bool(optimizer.state)
        self._plan: Mapping[str, Any] | None = None

    def load(self, plan: Mapping[str, Any] | None = None) -> None:
        """This rank has loaded something.

        Args:
            plan: config and plan of the checkpoint, in plain JSON; None is none.
        """
        self._loaded = True
        self._plan = plan or self._plan

    def note(self) -> Tensor | None:
        """What this rank trains, if it has loaded something since it was asked last."""
        loaded, self._loaded = self._loaded, False
        return self.fingerprint() if loaded else None

    def agree(self, note: Tensor | None, *, by_all: bool, control: Control) -> Mapping[str, Any] | None:
        """Compare what ranks train. Collective.

        Args:
            note: what this rank has noted in the step in which ranks said that they have loaded.
            by_all: all of them did: their notes are compared, else what they train now.
            control: compares.

        Returns:
            rank 0's plan; None if it has loaded none.

        Raises:
            CommunicationError: on every rank, if they differ.
        """
        seen = note if by_all and note is not None else self.fingerprint()
        rows = control.gather(torch.cat([torch.tensor([note is not None]), seen]))
        unlike = [rank for rank in range(control.size) if not torch.equal(rows[rank, 1:], rows[0, 1:])]
        if unlike:
            parts = (rows[:, 1:] != rows[0, 1:]).any(dim=0)
            what = " and ".join(part for part, differs in zip(PARTS, parts.tolist(), strict=True) if differs)
            raise control.failure(
                f"{_who(control, rows[:, 0].bool().tolist(), unlike)}, and their {what} differ now: "
                "load the same one on every rank"
            )
        plan, self._plan = self._plan, None
        shared: Mapping[str, Any] | None = control.share(plan)
        return shared

    @torch.no_grad()
    def fingerprint(self) -> Tensor:
        """Numbers that are the same on two ranks if their parameters, optimizer state and groups are: [3], int64.

        State that is sharded differs on purpose, and does not count.
        """
        held = {} if is_sharded(self._optimizer) else self._optimizer.state
        states = [held.get(parameter, {}) for parameter in self._parameters]
        groups = [numbers_of(group) for group in self._optimizer.param_groups]
        numbers = [_number(part) for part in (self._parameters, states, groups)]
        return torch.stack([number.cpu() for number in numbers])


def _who(control: Control, loaded: list[bool], unlike: list[int]) -> str:
    """Which ranks have loaded, and which have not."""
    have = [rank for rank, each in zip(control.ranks, loaded, strict=True) if each]
    have_not = [rank for rank in control.ranks if rank not in have]
    if have and have_not:
        return f"ranks {have} have loaded a checkpoint, ranks {have_not} have not"
    others = [control.ranks[rank] for rank in unlike]
    return f"ranks {others} have loaded another checkpoint than rank {control.ranks[0]}"


def _number(value: Any) -> Tensor:
    """The sum of a tensor's bits, of all in a list or dict, or of a text; int64, on the tensor's device."""
    if isinstance(value, Tensor):
        flat = value.detach().contiguous().reshape(-1)
        flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
        return flat.view(BITS[flat.element_size()]).sum(dtype=torch.int64)
    if isinstance(value, Mapping):
        return _number([each for key in sorted(value, key=str) for each in (str(key), value[key])])
    total = torch.zeros((), dtype=torch.int64)
    if isinstance(value, list | tuple):
        for each in value:
            number = _number(each)
            total = total.to(number.device) * PRIME + number
        return total
    return total + crc32(repr(value).encode()) if isinstance(value, str | int | float | None) else total
