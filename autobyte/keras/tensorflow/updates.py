"""Updates that wait for the next step: its graph begins with them, and each runs before its layer reads the variable.

TensorFlow orders reads and writes of one variable as the program has them, and those of different variables not at
all. So the first layer computes while the last layer's average is still on its way.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from autobyte.errors import InputError
from autobyte.exchange.times import ALONE
from autobyte.keras.tensorflow.gradients import GraphGradients

#: Optimizers that update each variable from its own gradient, by `update_step` alone.
ELEMENTWISE = (
    keras.optimizers.SGD,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.RMSprop,
    keras.optimizers.Adagrad,
    keras.optimizers.Adadelta,
    keras.optimizers.Adamax,
    keras.optimizers.Lion,
    keras.optimizers.Ftrl,
)


def why_at_once(optimizer: Any, *, eager: bool) -> str:
    """Why updates of a built optimizer cannot wait for the next step; empty if they can."""
    overwritten = any(map(optimizer._overwrite_variable_with_gradient, optimizer._trainable_variables))
    reasons = {
        "run_eagerly=True runs operations one after the other": eager,
        f"{type(optimizer).__name__} is not known to update each variable from its own gradient": (
            type(optimizer) not in ELEMENTWISE
        ),
        "a gradient of float8's scales is their next value": overwritten,
        "global_clipnorm needs all averages": optimizer.global_clipnorm is not None,
        "gradient_accumulation_steps updates in some steps alone": optimizer.gradient_accumulation_steps,
        "use_ema averages all variables at once": optimizer.use_ema,
    }
    return next((why for why, holds in reasons.items() if holds), "")


class LateUpdates:
    """The updates of the step before.

    Args:
        optimizer: one of `ELEMENTWISE`, built.
        gradients: whose averages it applies.
    """

    def __init__(self, optimizer: Any, gradients: GraphGradients) -> None:
        self._optimizer, self._gradients = optimizer, gradients
        gradients.apart = ALONE
        self._due = tf.Variable(False, trainable=False, name="autobyte_due")
        self._rate = tf.Variable(0.0, trainable=False, name="autobyte_rate")  # of the step that is due
        self._take: Callable[[], Any] = tf.function(self.take, autograph=False)
        self._token: Any = None  # of the updates in the graph that is being made
        self._left = False  # whether the gradients of that graph have left

    @property
    def in_step(self) -> bool:
        """Whether the graph that is being made has begun with the updates that are due."""
        return self._token is not None

    def leave(self, gradients: Sequence[Any], *beside: Any) -> None:
        """Let the gradients of a step travel; their updates are due in the next one.

        Raises:
            InputError: a variable has none: the graph begins with the updates, and cannot know.
        """
        for spec, gradient in zip(self._gradients.specs, gradients, strict=True):
            if gradient is None:
                raise InputError(
                    f"cross_step=True: a step applies no gradient to '{spec.name}': freeze it before compile(), or "
                    "say cross_step=False"
                )
        ended = self._gradients.leave(gradients, self._token, *beside)
        self._token, self._left = None, True
        self._rate.assign(tf.cast(self._optimizer.learning_rate, tf.float32))
        self._due.assign(tf.equal(ended, 0))

    def take(self) -> None:
        """Take the updates that are due, in the order of the forward pass."""
        due = tf.identity(self._due)
        token = tf.cast(due, tf.int32)  # no constant, see `GraphGradients`
        for group in self._gradients.groups:
            token = tf.cond(due, self._update_of(group, token), lambda token=token: token)
        iterations = self._optimizer.iterations
        iterations.assign_add(tf.cast(due, iterations.dtype))
        self._due.assign(False)
        self._token = token  # no gradient of this step leaves before averages of the last one are taken

    def take_here(self) -> Any:
        """Take the updates that are due in a step that is not `fit`'s.

        Returns:
            a token after which gradients of this step may leave.

        Raises:
            InputError: gradients have left in this step before, and code after that saw no update.
        """
        if self._left:
            raise InputError("cross_step=True: train_step applies gradients more than once: say cross_step=False")
        self.take()
        token, self._token = self._token, None
        return token

    def end_step(self) -> None:
        """The graph of a step is made, or could not be."""
        self._token, self._left = None, False

    def flush(self) -> None:
        """Take the updates that are due now, between two steps."""
        self._take()
        self._token = None

    def _update_of(self, group: Sequence[int], token: Any) -> Callable[[], Any]:
        def update() -> Any:
            averages, after = self._gradients.come(group, token)
            for place, average in zip(group, averages, strict=True):
                self._update(self._gradients.variables[place], average)
            return after

        return update

    def _update(self, variable: Any, average: Any) -> None:
        """Take one update, as Keras does."""
        optimizer = self._optimizer
        if optimizer.loss_scale_factor is not None:
            average = average / optimizer.loss_scale_factor
        (average,) = optimizer._clip_gradients([average])
        self._decay(variable)
        optimizer.update_step(average, variable.value, self._rate)
        if variable.constraint is not None:
            variable.assign(variable.constraint(variable))

    def _decay(self, variable: Any) -> None:
        """Decay a weight as Keras does, with the rate of the step that is due."""
        optimizer, held = self._optimizer, variable.value
        if optimizer.weight_decay is None or not optimizer._use_weight_decay(held):
            return
        decay, rate = tf.cast(optimizer.weight_decay, held.dtype), tf.cast(self._rate, held.dtype)
        held.assign_sub(held * decay * rate)
