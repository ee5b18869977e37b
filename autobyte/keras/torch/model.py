"""A compiled model on torch: a Keras optimizer in the place of a `torch.optim` one, behind `DistributedOptimizer`."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from autobyte.errors import InputError
from autobyte.exchange.averaging import AveragingSettings
from autobyte.exchange.tuning.report import Report
from autobyte.keras.processes import broadcast_variables
from autobyte.keras.wrapped import OWN, UNUSED, Overrides, Wrapped, other_optimizers, refuse_others
from autobyte.torch.optimizer import DistributedOptimizer

log = logging.getLogger("autobyte")


class KerasStep(torch.optim.Optimizer):
    """A `torch.optim` optimizer whose step is a Keras optimizer's, from the gradients in `.grad`.

    Args:
        apply: the Keras optimizer's own.
        variables: that it trains.
    """

    def __init__(self, apply: Callable[..., Any], variables: Sequence[Any]) -> None:
        self._apply, self._variables = apply, list(variables)
        super().__init__([variable.value for variable in self._variables], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update the variables; a closure has no use in `fit`."""
        self._apply([variable.value.grad for variable in self._variables], self._variables)


class WrappedModule(Wrapped):
    """Replaces the optimizer's `apply`: it waits for averages, and steps as a whole.

    Args:
        model: compiled and built.
        settings: how gradients travel.
        cross_step: whether updates may wait for the next step; they cannot here, and the log says so.

    Raises:
        InputError: torch compiles the step, or parameters cannot travel.
        CommunicationError: ranks differ in their models, or do not hear each other.
    """

    def __init__(self, model: Any, settings: AveragingSettings, *, cross_step: bool) -> None:
        if model.jit_compile:
            raise InputError(
                "compile(jit_compile=True): gradients cannot leave a compiled step: say jit_compile=False"
            )
        self._model, self._optimizer = model, model.optimizer
        self._variables = list(model.trainable_variables)
        self._overrides = Overrides()
        if cross_step:
            log.info("updates happen in the step whose gradients they take: on torch, Keras updates all at once")
        self._optimizer.build(self._variables)
        for layer in model._flatten_layers():  # Keras does so late, or never for LoRA's: names would change, or lack
            layer._track_variables()
        self._stepped = DistributedOptimizer(
            KerasStep(self._optimizer.apply, self._variables), model, policy=settings.policy, config=settings.config,
            tuner=settings.tuner, space=settings.space, budget=settings.budget, seed=settings.seed,
            keep=settings.keep, engine=settings.engine, wire_dtype=settings.wire_dtype, cross_step=False,
            drift=settings.drift, timeout=settings.timeout, diagnostics=settings.diagnostics,
            on_window=settings.on_window,
        )  # fmt: skip
        if (training := self._stepped.training) is not None:
            training.exchange.completed.unwatch()  # Keras's own train_step reads gradients for `apply`, which is ours
        try:
            broadcast_variables([*model.weights, *self._optimizer.variables])
        except BaseException:
            self._stepped.close()
            raise
        self._averaged = False  # whether a step has waited for averages
        self._looked = False  # whether the first one was looked at
        self._overrides.set(self._optimizer, "apply", self._apply())
        self._overrides.set(model, "make_train_function", self._make_train_function(model.make_train_function))
        model.train_function = None

    def flush(self) -> None:
        """Do nothing: no update waits."""

    def report(self) -> Report | None:
        """What was tried, won and spent; rank 0 knows it all."""
        return self._stepped.report()

    def close(self) -> None:
        """Let go of threads and sockets, and leave the model to Keras."""
        self._overrides.remove()
        vars(self._model).pop(OWN, None)
        self._model.train_function = None
        self._stepped.close()

    def _apply(self) -> Callable[..., None]:
        known = {id(variable) for variable in self._variables}

        def averaged(grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
            variables = self._variables if trainable_variables is None else list(trainable_variables)
            if len(variables) != len(known) or {id(variable) for variable in variables} != known:
                raise InputError(
                    f"{len(known)} variables were wrapped, and {len(variables)} have gradients: apply all at once, "
                    "or compile the model and wrap it again"
                )
            for gradient, variable in zip(grads, variables, strict=True):
                if gradient is not None and gradient is not variable.value.grad:
                    raise InputError(
                        f"the gradient of '{variable.path}' is not the .grad that backward() has left, which is what "
                        "travels: hand that to apply(), and clip or scale averages by the optimizer's own arguments"
                    )
            self._averaged = True
            self._stepped.step()

        return averaged

    def _make_train_function(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(force: bool = False) -> Any:
            if self._model.optimizer is not self._optimizer:
                raise InputError("compile() was called after distribute(): call distribute(model) again before fit()")
            if self._model.train_function is None or force:
                make(force=True)
                self._model.train_function = self._averaging(self._model.train_function)
            return self._model.train_function

        return made

    def _averaging(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A training function whose first step must average."""

        def called(*arguments: Any) -> Any:
            if self._looked:
                return function(*arguments)
            beside = other_optimizers(self._model)
            result = function(*arguments)
            if not self._averaged:
                raise InputError(UNUSED)
            refuse_others(self._model, beside)
            self._looked = True
            return result

        return called
