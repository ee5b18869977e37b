"""`distribute` and `DistributedGradientTape`: what a user says, looked at, and handed to the backend's part."""

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from autobyte.config import Config, Space
from autobyte.errors import InputError, needs
from autobyte.exchange.arguments import AUTO, BYTESCHEDULER, rank_0_speaks
from autobyte.exchange.averaging import AveragingSettings
from autobyte.exchange.tuning.callback import WindowReport
from autobyte.integrations.versions import check_version
from autobyte.keras.processes import begin, size
from autobyte.keras.wrapped import OWN, Alone, Wrapped

with needs("keras", what="training with Keras"):
    import keras

log = logging.getLogger("autobyte")

#: The oldest and the newest minor version of each library that the tests ran with.
TRIED = {"keras": ("3.15", "3.15"), "tensorflow": ("2.21", "2.21")}


def distribute(
    model: Any,
    *,
    policy: str = BYTESCHEDULER,
    config: Config | None = None,
    tuner: str | None = None,
    space: Space | None = None,
    budget: int | None = None,
    seed: int = 0,
    keep: Path | str | None = "autobyte.toml",
    engine: str = AUTO,
    wire_dtype: str | None = None,
    cross_step: bool = False,
    timeout: timedelta = timedelta(seconds=120),
    enabled: bool = True,
    on_window: Callable[[WindowReport], object] | None = None,
    diagnostics: Path | str | bool | None = True,
) -> Wrapped:
    """Average a model's gradients over all ranks in `fit`, `train_on_batch` and the optimizer's `apply`. Collective.

    >>> model.compile(optimizer="adam", loss="mse")
    >>> ab.distribute(model)
    >>> model.fit(...)

    Rank 0's weights and optimizer state are sent to the others. Call it again after another `compile`.

    Args:
        model: compiled and built, the same on all ranks.
        policy, config, tuner, space, budget, seed, keep: what chooses how gradients are cut and ordered, as
            `autobyte.torch.DistributedOptimizer` has them; `config` is no file here.
        engine: `allreduce`, over gloo from host memory, or `ps` for parameter servers on the ranks' hosts.
        wire_dtype: `bf16` or `fp16` compress gradients on the wire.
        cross_step: whether updates may wait for the next step, each until its layer is about to read it. Batch
            callbacks then see weights without the last update; `flush()` takes it. Tensorflow's backend alone.
        timeout: after which a wait fails, with a message that names rank, step and tensor.
        enabled: False leaves everything to Keras; so do AUTOBYTE_DISABLE=1 and a single rank.
        on_window: called on rank 0 after every window of about ten steps. It must not be collective.
        diagnostics: a folder in which each rank leaves a file when communication fails; True is one of the job in the
            temporary directory, None writes nothing.

    Returns:
        the wrapped model, to `flush()`, `report()` and `close()`.

    Raises:
        InputError: something here cannot be used.
        CommunicationError: ranks differ in their models, or do not hear each other.
    """
    with rank_0_speaks():
        settings = AveragingSettings(
            policy=policy, config=config, tuner=tuner, space=space, budget=budget, seed=seed, keep=keep,
            engine=engine, wire_dtype=wire_dtype, timeout=timeout, diagnostics=diagnostics, on_window=on_window,
        )  # fmt: skip
        backend = _backend()
        _check_model(model)
    if former := vars(model).pop(OWN, None):
        former.close()
    begin(timeout)
    if is_off(enabled=enabled):
        return Alone()
    vars(model)[OWN] = wrapped = _wrap(backend)(model, settings, cross_step=cross_step)
    return wrapped


def DistributedGradientTape(tape: Any, **settings: Any) -> Any:  # noqa: N802 - Horovod's name
    """Make `tape.gradient` return averages over all ranks. For loops without `fit`, on TensorFlow's backend.

    >>> with tf.GradientTape() as tape:
    ...     loss = loss_of(model(x, training=True), y)
    >>> tape = ab.DistributedGradientTape(tape)
    >>> optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    The first `gradient` connects the ranks. Tapes of later steps use the same connection. Send the first weights with
    `broadcast_variables`.

    Args:
        tape: TensorFlow's.
        settings: as `distribute` has them, but for `cross_step`; those of the first tape count.

    Raises:
        InputError: the backend is another one, or a setting cannot be used.
    """
    if _backend() != "tensorflow":
        raise InputError("GradientTape is TensorFlow's: set KERAS_BACKEND=tensorflow, or use distribute(model)")
    enabled = settings.pop("enabled", True)
    try:
        asked = AveragingSettings(**settings)
    except TypeError as error:
        raise InputError(f"DistributedGradientTape: {error}") from None
    if is_off(enabled=enabled):
        return tape
    from autobyte.keras.tensorflow.tape import AveragingTape  # noqa: PLC0415, loads TensorFlow

    return AveragingTape(tape, asked)


def is_off(*, enabled: bool) -> bool:
    """Whether there is nothing to average; the log says so where that may be a mistake."""
    if size() == 1:
        return True
    disabled = os.environ.get("AUTOBYTE_DISABLE", "") not in ("", "0")
    if not enabled or disabled:
        why = "AUTOBYTE_DISABLE is set" if disabled else "enabled=False"
        log.warning("AutoByte is off: %s; ranks train on their own, nothing is averaged", why)
        return True
    return False


def _wrap(backend: str) -> Callable[..., Wrapped]:
    """What wraps a model on a backend; TensorFlow is imported only where it computes."""
    if backend == "tensorflow":
        from autobyte.keras.tensorflow.model import WrappedModel  # noqa: PLC0415

        return WrappedModel
    from autobyte.keras.torch.model import WrappedModule  # noqa: PLC0415

    return WrappedModule


def _backend() -> str:
    """Keras's backend in this process.

    Raises:
        InputError: gradients cannot be averaged on it, or a library is too old.
    """
    backend = str(keras.backend.backend())
    if backend not in ("tensorflow", "torch"):
        raise InputError(
            f"Keras's backend is '{backend}', and gradients are averaged on tensorflow and torch: set "
            "KERAS_BACKEND before keras is imported"
        )
    check_version("keras", found=keras.__version__, tried=TRIED)
    if backend == "tensorflow":
        import tensorflow as tf  # noqa: PLC0415, the backend has loaded it

        check_version("tensorflow", found=tf.__version__, tried=TRIED)
    return backend


def _check_model(model: object) -> None:
    """Look at a model before ranks wait for each other.

    Raises:
        InputError: it is none of the backend in force, or is not ready to train.
    """
    if not isinstance(model, keras.Model):
        other = any(kind.__name__ == "Model" and "keras" in kind.__module__ for kind in type(model).__mro__)
        why = ", whose Keras is another one than is loaded now: a process has one backend" if other else ""
        raise InputError(f"say distribute(model) with a keras.Model, got {type(model).__name__}{why}")
    if not model.compiled or model.optimizer is None:
        raise InputError(f"model '{model.name}' is not compiled: call compile() before distribute()")
    if not model.built:
        raise InputError(f"model '{model.name}' is not built: give it an Input, or call build() before distribute()")
