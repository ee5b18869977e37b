"""The first steps of a training, compared with what a plain all-reduce makes of the same gradients."""

import torch
from torch import Tensor

from autobyte.torch.control import CommunicationError
from autobyte.torch.training import Training


class Verification:
    """Looks at gradients before and after they were averaged.

    Args:
        training: whose gradients.
        steps: how many first steps to look at.
    """

    def __init__(self, training: Training, steps: int) -> None:
        self._training = training
        self._steps = steps
        self._before: dict[str, Tensor] = {}
        if steps:
            training.exchange.observer = self._keep

    @property
    def active(self) -> bool:
        """Whether steps are still being compared."""
        return self._training.exchange.steps < self._steps

    def check(self) -> None:
        """Compare the gradients of the step that was just averaged. Collective.

        Raises:
            CommunicationError: naming rank, step and tensor, where they differ by more than rounding.
        """
        exchange = self._training.exchange
        if exchange.observer is None:
            return
        for name in exchange.parameters:
            self._compare(name, self._before[name], step=exchange.steps - 1)
        self._before.clear()
        if not self.active:
            exchange.observer = None

    def _keep(self, name: str, gradient: Tensor) -> None:
        self._before[name] = gradient.detach().clone().cpu()

    def _compare(self, name: str, before: Tensor, *, step: int) -> None:
        control = self._training.control
        rows = control.gather(before.double().reshape(-1))
        grad = self._training.exchange.parameters[name].grad
        after = torch.zeros(rows.shape[1], device="cpu") if grad is None else grad.detach().cpu().double().reshape(-1)
        worst = float((after - rows.mean(dim=0)).abs().max()) if after.numel() else 0.0
        dtype = self._training.job.wire_dtype
        eps = torch.finfo(getattr(torch, dtype) if dtype else before.dtype).eps
        tolerance = 4 * eps * float(rows.abs().max()) if after.numel() else 0.0
        if not worst <= tolerance:
            raise CommunicationError(
                f"rank {control.rank}, step {step}: tensor '{name}' differs by {worst:.3g} from a plain all-reduce, "
                f"where rounding explains {tolerance:.3g}"
            )
