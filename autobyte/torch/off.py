"""What the wrapper does while AutoByte is off: it hands every call on to the user's optimizer."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autobyte.config import Config
from autobyte.exchange.tuning.report import Report


class Off:
    """Nothing is averaged. It has the methods of `On`, so that the wrapper need not know which one it has.

    Args:
        optimizer: the user's.
        tell_joined: tells ranks whose inputs have ended that a step begins.
        last_report: of a training that is over.
        steps: that it took.
        last_state: what a checkpoint keeps of it, after `recover()`.
    """

    training = None

    def __init__(
        self,
        optimizer: Optimizer,
        tell_joined: Callable[[], bool],
        last_report: Report | None,
        *,
        steps: int = 0,
        last_state: dict[str, Any] | None = None,
    ) -> None:
        self.steps = steps
        self.last_state = last_state
        self._optimizer = optimizer
        self._tell_joined = tell_joined
        self.last_report = last_report

    def step(self, closure: Callable[[], Any] | None) -> Any:
        """Update the parameters."""
        self._tell_joined()
        loss = self._optimizer.step(closure)
        self.steps += 1
        return loss

    def synchronize(self) -> None:
        """No average is under way."""

    def flush(self) -> None:
        """No update is due."""

    def broadcast_buffers(self) -> None:
        """Ranks keep their own buffers."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Nothing is sent anyway."""
        return nullcontext()

    def clip_grad_norm_(self, max_norm: float, norm_type: float, *, error_if_nonfinite: bool) -> torch.Tensor:
        """Clip the optimizer's gradients."""
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)

    def clip_grad_value_(self, clip_value: float) -> None:
        """Clip the optimizer's gradients."""
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        nn.utils.clip_grad_value_(parameters, clip_value)

    def groups_to_unscale(self) -> list[dict[str, Any]]:
        """All gradients."""
        return self._optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients."""
        self._optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state and its steps; after `recover()`, what a checkpoint keeps of the training, too."""
        state = self._optimizer.state_dict()
        state["autobyte"] = (self.last_state or {}) | {"steps": self.steps}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the optimizer's state; config and plan are left aside."""
        self._optimizer.load_state_dict(state_dict)
        self.steps = state_dict.get("autobyte", {}).get("steps", self.steps)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters."""
        self._optimizer.add_param_group(param_group)

    def reconfigure(self, config: Config) -> None:
        """There is nothing to configure."""

    def report(self) -> Report | None:
        """What a training that is over has tried, won and spent."""
        return self.last_report

    def close(self) -> None:
        """There is nothing to let go of."""

    def recover(self) -> int:
        """Nothing can have failed half-way."""
        return self.steps

    def part(self) -> None:
        """Other ranks need nothing of this one."""

    def accompany(self) -> None:
        """Ranks that still have inputs need nothing of this one."""

    def follow(self, source: int) -> None:
        """Every rank has learned on its own."""
