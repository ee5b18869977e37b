"""`tf.GradientTape` for loops without `fit`: its gradients are averages over all ranks."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from autobyte.errors import InputError
from autobyte.exchange.averaging import AveragingSettings
from autobyte.keras.tensorflow.gradients import GraphGradients

_connected: list[GraphGradients] = []  # of all tapes: a loop makes a tape in every step


class AveragingTape:
    """A tape like TensorFlow's whose `gradient` returns averages.

    Args:
        tape: TensorFlow's.
        settings: how gradients travel, if this tape is the first for its variables.
    """

    def __init__(self, tape: Any, settings: AveragingSettings) -> None:
        self._tape, self._settings = tape, settings

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **keywords: Any) -> Any:
        """The averages of the gradients of a target. Collective.

        Args:
            target: as TensorFlow's tape has it.
            sources: a variable, or a list or nest of them, the same in every step.
            output_gradients, keywords: as TensorFlow's tape has them.

        Returns:
            averages in the form of `sources`; None where the target does not depend on a variable.

        Raises:
            InputError: one of the sources is no variable, or travelled with other variables before.
            CommunicationError: ranks differ in their variables, or do not hear each other.
        """
        variables = tf.nest.flatten(sources)
        for each in variables:
            if not isinstance(each, keras.Variable | tf.Variable):
                raise InputError(
                    f"tape.gradient(): averages are of variables, got {type(each).__name__}: use TensorFlow's"
                )
        gradients = connected(variables, self._settings)
        computed = self._tape.gradient(target, variables, output_gradients, **keywords)
        averages = gradients.average(computed)
        return tf.nest.pack_sequence_as(sources, averages)

    def __enter__(self) -> "AveragingTape":
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)


def travelling() -> set[int]:
    """Ids of the variables whose gradients tapes average."""
    return {id(variable) for gradients in _connected for variable in gradients.variables}


def connected(variables: Sequence[Any], settings: AveragingSettings) -> GraphGradients:
    """What averages these variables' gradients, made when they are seen first.

    Raises:
        InputError: some of them have one already, with others.
    """
    ids = {id(variable) for variable in variables}
    for gradients in _connected:
        if ids & {id(variable) for variable in gradients.variables}:
            try:
                gradients.check(variables)
            except InputError:
                raise InputError(
                    f"tape.gradient(): {len(gradients.variables)} variables before, and now {len(variables)}, "
                    "some of which are the same, or in another order: say the same list in every step"
                ) from None
            return gradients
    if not variables:
        raise InputError("tape.gradient(): there are no variables whose gradients could travel")
    made = GraphGradients("tape", variables, settings)
    _connected.append(made)
    return made
