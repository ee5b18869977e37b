"""The callbacks that people know from Horovod, for `model.fit` on several ranks."""

import logging
from typing import Any

import numpy as np

from autobyte.errors import InputError, needs
from autobyte.keras.processes import broadcast_variables, control, mean, size

with needs("keras", what="training with Keras"):
    import keras

log = logging.getLogger("autobyte")


class BroadcastGlobalVariables(keras.callbacks.Callback):
    """Sends one rank's weights and optimizer state to all others when training begins.

    `distribute` has done so with rank 0's. This is for what is loaded on one rank afterwards.

    >>> model.fit(..., callbacks=[ab.BroadcastGlobalVariables()])

    Args:
        root_rank: whose values count.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self._root_rank = root_rank

    def on_train_begin(self, logs: Any = None) -> None:
        """Send them. Collective."""
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        broadcast_variables([*self.model.weights, *optimizer.variables], self._root_rank)


class MetricAverage(keras.callbacks.Callback):
    """Averages an epoch's metrics over ranks, in place: callbacks that follow in the list see the means.

    >>> model.fit(..., callbacks=[ab.MetricAverage(), keras.callbacks.ReduceLROnPlateau()])
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average them. Collective."""
        if not logs or size() == 1:
            return
        values = {name: np.array(keras.ops.convert_to_numpy(logs[name]), "float64") for name in sorted(logs)}
        control().agree("metrics", "; ".join(f"{name} {value.shape}" for name, value in values.items()))
        means = mean(np.concatenate([value.reshape(-1) for value in values.values()]).tolist())
        for name, value in values.items():  # most are numbers; some have one for each class
            own, means = means[: value.size], means[value.size :]
            logs[name] = np.reshape(own, value.shape) if value.ndim else own[0]


class LearningRateWarmup(keras.callbacks.Callback):
    """Raises the learning rate from that of one rank to that of all ranks in the first epochs (Goyal et al., 2017).

    The rate of a batch is initial_lr / size · (1 + progress · (size − 1)), where progress goes from 0 to 1.

    >>> model.fit(..., callbacks=[ab.LearningRateWarmup(0.1 * ab.size(), warmup_epochs=3)])

    Args:
        initial_lr: the rate after the warm-up, as a rule that of one rank times the number of ranks.
        warmup_epochs: how long it takes.
        steps_per_epoch: batches of an epoch; None is what `fit` knows.

    Raises:
        InputError: an argument is not positive, or the optimizer has a schedule of its own.
    """

    def __init__(self, initial_lr: float, warmup_epochs: float = 5, steps_per_epoch: int | None = None) -> None:
        super().__init__()
        if not initial_lr > 0 or not warmup_epochs > 0:
            raise InputError(f"initial_lr and warmup_epochs must be positive, got {initial_lr} and {warmup_epochs}")
        self._rate, self._epochs, self._steps = float(initial_lr), float(warmup_epochs), steps_per_epoch
        self._epoch, self._warms = 0, False

    def on_train_begin(self, logs: Any = None) -> None:
        """Look whether the rate can be set."""
        if isinstance(self.model.optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            raise InputError("LearningRateWarmup sets the learning rate, and the optimizer has a schedule: use one")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate of a batch."""
        if self._epoch >= self._epochs:
            if self._warms:  # with several steps in a call, the last one seen was not the last one
                self.model.optimizer.learning_rate, self._warms = self._rate, False
            return
        steps = self._steps or self.params.get("steps")
        if not steps:
            raise InputError("LearningRateWarmup does not know how many batches an epoch has: say steps_per_epoch=")
        self._warms = True
        progress = min(1.0, (self._epoch + (batch + 1) / steps) / self._epochs)
        self.model.optimizer.learning_rate = self._rate / size() * (1 + progress * (size() - 1))
