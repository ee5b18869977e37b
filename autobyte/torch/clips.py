"""Clipping and unscaling of a step's gradients, if possible before their averages are in place."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from autobyte.torch.exchange.training import Training
from autobyte.torch.model.clipping import Clipping, check_finite

UNKNOWN = 0.0  #: limit of a step that a scaler closes: ranks cannot compare theirs


class Clips:
    """Knows what happens to the averages of the closed step when they are used.

    Args:
        training: moves the gradients.
        settle: takes updates that are due, before a step is closed.
        synchronize: waits for all averages, and has them changed.
        may_wait: whether averages may wait for the next forward pass.
        replanned: is called when gradients travel as halves from now on.
    """

    def __init__(
        self,
        training: Training,
        *,
        settle: Callable[[], None],
        synchronize: Callable[[], None],
        may_wait: Callable[[], bool],
        replanned: Callable[[], None],
    ) -> None:
        self._training = training
        self._settle, self._synchronize, self._may_wait = settle, synchronize, may_wait
        self._replanned = replanned
        self._pending: Clipping | None = None
        self._clips = False  # whether this rank has clipped before
        self._scaled: tuple[float, torch.Tensor] | None = None  # the norm, and what a scaler multiplies gradients by
        self._waited = -1  # steps that were closed when averages were last waited for, to clip or unscale them

    @property
    def pending(self) -> bool:
        """Whether the closed step's averages are not in place, and are changed when they are."""
        return self._pending is not None

    def take(self) -> Clipping:
        """Hand over what happens to the averages."""
        clipping, self._pending = self._pending or Clipping(), None
        factor = self._unscale()
        return clipping if factor == 1.0 else replace(clipping, factor=clipping.factor * factor)

    def by_norm(self, limit: float, kind: float, *, error_if_nonfinite: bool) -> torch.Tensor:
        """Clip by the norm of all averages; return it, shape []."""
        total = self._norm(limit, kind)
        self._clips = True
        if total is None:
            exchange = self._training.exchange
            if exchange.norm_kind != kind and self._waited == exchange.steps and not exchange.joined:
                self._halve(kind)
            parameters = exchange.parameters.values()
            return nn.utils.clip_grad_norm_(parameters, limit, kind, error_if_nonfinite)
        factor = self._unscale()
        total *= factor
        self._pending = Clipping(factor=factor)
        check_finite(total, kind, error_if_nonfinite=error_if_nonfinite)
        self._pending = Clipping(factor=factor * Clipping.by_norm(total, limit).factor)
        if not self._may_wait():
            self._synchronize()
        return torch.tensor(total, dtype=torch.float32)

    def by_value(self, limit: float) -> None:
        """Clip every element."""
        if self.pending or self._training.progress.averaged or not self._may_wait():
            self._synchronize()
            nn.utils.clip_grad_value_(self._training.exchange.parameters.values(), limit)
        else:
            self._settle()
            self._training.exchange.close(ahead=True)
            self._pending = Clipping(limit=limit)

    def to_unscale(self) -> list[dict[str, Any]] | None:
        """What a gradient scaler unscales in place of gradients that are not in place; None if they are, now.

        It is one parameter, whose gradient is 1. What the scaler makes of that is a factor of the averages, when they
        are used. The norm says whether they are finite.
        """
        exchange = self._training.exchange
        clips, kind, total, device = self._clips, exchange.norm_kind, None, self._one_device()
        waits = not (self.pending or self._training.progress.averaged) and exchange.halved
        if clips and kind is not None and device is not None and waits:
            total = self._closed_norm(UNKNOWN, kind)
            self._pending = Clipping()
        if total is None or not math.isfinite(total):  # each element tells whether it is finite
            if not self._training.progress.averaged:
                self._synchronize()
                self._waited = exchange.steps
            return None
        stands_in = nn.Parameter(torch.ones((), device=device))
        stands_in.grad = torch.ones_like(stands_in)
        self._scaled = total, stands_in.grad
        return [{"params": [stands_in]}]

    def _norm(self, limit: float, kind: float) -> float | None:
        """The norm of averages, a scale still in it; None if they are in place, now."""
        if self._scaled is not None and kind == self._training.exchange.norm_kind:
            return self._scaled[0]
        if self.pending:  # by value, or by norm before
            self._synchronize()
        if self._training.progress.averaged:
            return None
        total = self._closed_norm(limit, kind)
        if total is None:
            self._pending = Clipping()
            self._synchronize()
            self._waited = self._training.exchange.steps
        return total

    def _closed_norm(self, limit: float, kind: float) -> float | None:
        """Close the step; the norm of its averages if that is known before they are in place."""
        exchange = self._training.exchange
        self._settle()
        exchange.close(clips=(limit, kind), ahead=True)
        if exchange.halved:
            return exchange.norm(kind)
        if exchange.norm_kind is None:  # plans are about to change, on all ranks or on none
            exchange.tallies.clipped_by_all()
        return None

    def _unscale(self) -> float:
        """What a scaler has said that averages are multiplied by; once."""
        scaled, self._scaled = self._scaled, None
        return 1.0 if scaled is None else float(scaled[1])

    def _halve(self, kind: float) -> None:
        """Let the norm be known earlier, from the next step on."""
        if self._training.clip(kind):
            self._replanned()

    def _one_device(self) -> torch.device | None:
        """Where all parameters are, if a scaler can unscale them."""
        parameters = self._training.exchange.parameters.values()
        devices = {parameter.device for parameter in parameters}
        half = any(parameter.dtype is torch.float16 for parameter in parameters)  # the scaler refuses their gradients
        return None if half or len(devices) > 1 else devices.pop()
