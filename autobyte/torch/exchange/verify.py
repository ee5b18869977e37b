"""The first steps of a training, compared with what a plain all-reduce makes of the same gradients."""

import torch
from torch import Tensor

from autobyte.torch.exchange.training import Training


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
        if not self._before:
            return
        for name in exchange.parameters:
            self._compare(name, self._before[name], step=exchange.steps - 1)
        self._before.clear()

    def keep(self, name: str, gradient: Tensor) -> None:
        """Take a copy of a gradient that is about to travel, while steps are compared."""
        if self.active:
            self._before[name] = gradient.detach().clone().cpu()

    def _compare(self, name: str, before: Tensor, *, step: int) -> None:
        control = self._training.control
        wire = self._training.job.wire_dtype
        dtype = getattr(torch, wire) if wire else before.dtype
        rows = control.gather(before.double().reshape(-1))
        rows = rows.to(dtype).double()  # what overflows on the wire is infinite
        grad = self._training.exchange.parameters[name].grad
        after = torch.zeros(rows.shape[1], device="cpu") if grad is None else grad.detach().cpu().double().reshape(-1)
        mean = rows.mean(dim=0)
        alike = (after == mean) | (after.isnan() & mean.isnan())  # infinities, too: a scaler looks for them
        worst = float((after - mean).abs()[~alike].max()) if not alike.all() else 0.0
        largest = float(rows.abs().nan_to_num(0.0, 0.0).max()) if after.numel() else 0.0
        tolerance = 4 * torch.finfo(dtype).eps * largest
        if not worst <= tolerance:
            raise control.failure(
                f"tensor '{name}' differs by {worst:.3g} from a plain all-reduce, where rounding explains "
                f"{tolerance:.3g}",
                step=step,
            )
