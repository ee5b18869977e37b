"""A compiled model on TensorFlow whose gradients are averaged between `tape.gradient` and the optimizer."""

import logging
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import keras
import tensorflow as tf

from autobyte.errors import InputError
from autobyte.exchange.averaging import AveragingSettings
from autobyte.exchange.control import CommunicationError
from autobyte.exchange.tuning.report import Report
from autobyte.keras.processes import broadcast_variables
from autobyte.keras.tensorflow.gradients import GraphGradients
from autobyte.keras.tensorflow.tape import travelling
from autobyte.keras.tensorflow.updates import LateUpdates, why_at_once
from autobyte.keras.wrapped import OWN, UNUSED, Overrides, Wrapped, other_optimizers, refuse_others

log = logging.getLogger("autobyte")

#: Methods of a model that read or write its weights between steps.
READERS = (
    "evaluate",
    "predict",
    "test_on_batch",
    "predict_on_batch",
    "save",
    "save_weights",
    "load_weights",
    "get_weights",
    "set_weights",
    "export",
    "get_state_tree",
    "set_state_tree",
    "save_own_variables",  # whatever of Keras saves or copies a model calls it
    "load_own_variables",
)


class WrappedModel(Wrapped):
    """Replaces the optimizer's `apply` and the model's training function, on these two objects alone.

    Args:
        model: compiled and built.
        settings: how gradients travel.
        cross_step: whether updates may wait for the next step.

    Raises:
        InputError: XLA compiles the step, or variables cannot travel.
        CommunicationError: ranks differ in their models, or do not hear each other.
    """

    def __init__(self, model: Any, settings: AveragingSettings, *, cross_step: bool) -> None:
        self._model, self._optimizer = model, model.optimizer
        _turn_xla_off(model)
        self._gradients = GraphGradients(model.name, model.trainable_variables, settings)
        self._overrides = Overrides()
        try:
            self._optimizer.build(model.trainable_variables)
            broadcast_variables([*model.weights, *self._optimizer.variables])
            self._late = self._make_late(cross_step=cross_step)
            self._begun: Any = None  # tokens of the moments that the graph being made has marked
            self._lost: Any = None
            self._replace()
        except BaseException:
            self._gradients.averaging.close()
            raise

    def flush(self) -> None:
        """Take every update that is due."""
        if self._late is not None:
            self._surfacing(self._late.flush)()

    def report(self) -> Report:
        """What was tried, won and spent; rank 0 knows it all."""
        return self._gradients.averaging.report()

    def close(self) -> None:
        """Take the last updates, let go of threads and sockets, and leave the model to Keras."""
        try:
            if self._gradients.failure is None:
                self.flush()
        finally:
            self._overrides.remove()
            vars(self._model).pop(OWN, None)
            self._model.train_function = None
            self._gradients.averaging.close()

    def _make_late(self, *, cross_step: bool) -> LateUpdates | None:
        if not cross_step:
            return None
        why = why_at_once(self._optimizer, eager=self._model.run_eagerly)
        if why:
            log.info("updates happen in the step whose gradients they take: %s", why)
            return None
        return LateUpdates(self._optimizer, self._gradients)

    def _replace(self) -> None:
        """Set what Keras calls in `fit`."""
        model, optimizer, overrides = self._model, self._optimizer, self._overrides
        overrides.set(optimizer, "apply", self._apply(optimizer.apply))
        overrides.set(optimizer, "scale_loss", self._scale_loss(optimizer.scale_loss))
        overrides.set(model, "train_step", self._train_step(model.train_step))
        overrides.set(model, "make_train_function", self._make_train_function(model.make_train_function))
        if self._late is not None:
            overrides.set(model, "fit", self._fit(model.fit))
            for name in READERS:
                overrides.set(model, name, self._flushed(getattr(model, name)))
        model.train_function = None  # one made before would not average

    def _apply(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """The optimizer's `apply`, of averages."""

        def averaged(grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> Any:
            gradients = list(grads)
            if not gradients:
                return apply(gradients, trainable_variables)
            known = self._gradients.variables
            variables = known if trainable_variables is None else list(trainable_variables)
            gradients = self._gradients.placed(gradients, variables)
            marks = self._gradients.reachable([mark for mark in (self._begun, self._lost) if mark is not None])
            self._begun = self._lost = None
            if self._late is not None and self._late.in_step:
                return self._late.leave(gradients, *marks)
            after = None if self._late is None else self._late.take_here()
            averages = dict(zip(map(id, known), self._gradients.average(gradients, *marks, after=after), strict=True))
            return apply([averages[id(variable)] for variable in variables], variables)

        return averaged

    def _scale_loss(self, scale_loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The optimizer's `scale_loss`, which Keras calls when the loss is computed."""

        def marked(loss: Any) -> Any:
            self._lost = self._gradients.mark(self._gradients.averaging.loss, loss)
            return scale_loss(loss)

        return marked

    def _train_step(self, train_step: Callable[..., Any]) -> Callable[..., Any]:
        """The model's `train_step`, behind the updates that are due."""

        def step(data: Any) -> Any:
            gradients = self._gradients
            there = [each for each in tf.nest.flatten(data, expand_composites=True) if tf.is_tensor(each)]
            with tf.control_dependencies(there):  # where data ends, Keras runs a step that has none
                self._begun = gradients.mark(gradients.averaging.begin, gradients.token())
                if self._late is not None:
                    with tf.control_dependencies([self._begun]):  # what it waits for is of this forward pass
                        self._late.take()
            try:
                return train_step(data)
            finally:
                self._begun = self._lost = None
                if self._late is not None:
                    self._late.end_step()

        return step

    def _make_train_function(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """The model's `make_train_function`, whose function raises what a Python function in the graph raised."""
        model = self._model

        def made(force: bool = False) -> Any:
            if model.optimizer is not self._optimizer:
                raise InputError("compile() was called after distribute(): call distribute(model) again before fit()")
            self._gradients.check(model.trainable_variables)
            if model.train_function is None or force:
                _turn_xla_off(model)
                make(force=True)
                model.train_function = self._averaging(self._surfacing(model.train_function))
            return model.train_function

        return made

    def _averaging(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A training function whose first step must average."""
        progress, looked = self._gradients.averaging.connection.progress, False

        def called(*arguments: Any) -> Any:
            nonlocal looked
            if looked:
                return function(*arguments)
            before, beside = progress.steps, other_optimizers(self._model)
            result = function(*arguments)
            if progress.steps == before:
                raise InputError(UNUSED)
            refuse_others(self._model, beside, averaged=travelling())
            looked = True
            return result

        return called

    def _surfacing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            gradients = self._gradients
            if self._late is not None and gradients.failure is not None:
                raise gradients.failure
            try:
                return function(*arguments)
            except tf.errors.OpError as error:
                if gradients.failure is not None:
                    raise gradients.failure from None
                if self._late is not None and not isinstance(error, tf.errors.OutOfRangeError):
                    gradients.failure = CommunicationError(
                        f"a step failed half-way ({type(error).__name__}), and updates may be lost: load a checkpoint"
                    )
                raise error

        return called

    def _fit(self, fit: Callable[..., Any]) -> Callable[..., Any]:
        """The model's `fit`; callbacks see the weights of an epoch with its last update."""

        def flushed(*arguments: Any, **keywords: Any) -> Any:
            given = signature(fit).bind(*arguments, **keywords)
            callbacks = given.arguments.get("callbacks")
            if not isinstance(callbacks, keras.callbacks.CallbackList):
                more = callbacks if isinstance(callbacks, list | tuple) else [] if callbacks is None else [callbacks]
                given.arguments["callbacks"] = [Flush(self.flush), *more]
            history = fit(*given.args, **given.kwargs)
            self.flush()
            return history

        return flushed

    def _flushed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **keywords: Any) -> Any:
            self.flush()
            return method(*arguments, **keywords)

        return called


class Flush(keras.callbacks.Callback):
    """Takes the last updates of an epoch before other callbacks see it."""

    def __init__(self, flush: Callable[[], None]) -> None:
        super().__init__()
        self._flush = flush

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Take them."""
        self._flush()


def _turn_xla_off(model: Any) -> None:
    """Let TensorFlow run the step as it is: XLA cannot call Python, and so nothing could leave from within it.

    Raises:
        InputError: the user asked for XLA. On a GPU Keras asks for it itself, and the log says that it is off.
    """
    if not model.jit_compile:
        return
    if all(device.device_type == "CPU" for device in tf.config.list_physical_devices()):
        raise InputError(
            "compile(jit_compile=True): XLA compiles a step as a whole, and gradients could not leave from within "
            "it: say jit_compile=False"
        )
    model.jit_compile = False
    log.warning("jit_compile is off: XLA compiles a step as a whole, and gradients could not leave from within it")
