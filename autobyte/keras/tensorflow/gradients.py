"""Gradients as TensorFlow's graph has them: each leaves as soon as it is computed, and its average comes back.

Gradients leave by *stateless* Python functions. Stateful operations of a `tf.function` are chained in the order in
which the program has them: the last layer's gradient, which is computed first, would wait for all others. Only data
dependencies order stateless operations, so each passes a *token*, a small tensor, to the next.

A call costs TensorFlow more than a small gradient costs the network. So small variables (biases, normalization) leave
and come with the variable before them, by one function: they are a *group*.

- If its inputs were constant, TensorFlow would run a function once and keep its result. So the first token is read
  from a variable.
- A wait holds one of TensorFlow's threads. Its token comes from the wait before, so one waits at a time.
"""

import ctypes
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from autobyte.errors import InputError
from autobyte.exchange.averaging import Averaging, AveragingSettings
from autobyte.exchange.spec import ArraySpec, groups_of

log = logging.getLogger("autobyte")

SMALL_BYTES = 64 * 1024  # at most, of all variables in a group but the first, together
_DONE = 0  # the value of every token
_known: set[int] = set()  # threads that have a state in Python


class GraphGradients:
    """The gradients of one set of variables.

    Args:
        name: of the model.
        variables: Keras's or TensorFlow's, in the order of the forward pass.
        settings: how they travel.

    Raises:
        InputError: variables have no fixed shape, or a dtype that does not travel.
        CommunicationError: ranks differ in them, or do not hear each other.
    """

    def __init__(self, name: str, variables: Sequence[Any], settings: AveragingSettings) -> None:
        self.variables = list(variables)
        self.specs = specs_of(self.variables)
        self.averaging = Averaging(name, self.specs, settings)
        self.groups = groups_of(self.specs, small=SMALL_BYTES)
        self.apart = 0  # so many times, all averages are waited for before the first one is handed out
        self.failure: BaseException | None = None  # that a function raised within a graph, which hides it
        self._ids = [id(variable) for variable in self.variables]
        self._told_sparse: set[int] = set()
        with tf.init_scope():
            self._clock = tf.Variable(_DONE, trainable=False, dtype=tf.int32, name="autobyte_clock")

    def check(self, variables: Sequence[Any]) -> None:
        """Refuse variables other than those whose gradients travel.

        Raises:
            InputError: some were added, or left out, after wrapping.
        """
        if [id(variable) for variable in variables] == self._ids:
            return
        known = set(self._ids)
        added = [_path(variable) for variable in variables if id(variable) not in known]
        if added:
            raise InputError(
                f"variable '{added[0]}' was added after the model was wrapped, and its gradient does not travel: "
                "compile the model and wrap it again"
            )
        raise InputError(
            f"{len(self._ids)} variables were wrapped, and {len(variables)} have gradients, or in another order: "
            "compile the model and wrap it again"
        )

    def placed(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Gradients of some of the variables, in any order, by the places of all; None for the others.

        Raises:
            InputError: a variable was added after wrapping.
        """
        given = dict(zip(map(id, variables), gradients, strict=True))
        if not given.keys() <= set(self._ids):
            self.check(variables)
        return [given.get(each) for each in self._ids]

    def reachable(self, tokens: Sequence[Any]) -> list[Any]:
        """The tokens that the graph being made can read: not those of a loop or branch that it has left."""
        graphs, graph = [], tf.compat.v1.get_default_graph()
        while graph is not None:
            graphs.append(graph)
            graph = getattr(graph, "outer_graph", None)
        return [token for token in tokens if tf.executing_eagerly() or token.graph in graphs]

    def token(self) -> Any:
        """The first token of a step. It is there at once, but TensorFlow cannot know that."""
        return tf.identity(self._clock)

    def mark(self, moment: Callable[[], None], after: Any) -> Any:
        """Note a moment, when something is computed.

        Returns:
            a token, without which the mark is pruned.
        """

        def note(*_: Any) -> Any:
            moment()
            return _token()

        return self._call(note, [after], tf.int32)

    def leave(self, gradients: Sequence[Any], token: Any, *beside: Any) -> Any:
        """Let gradients travel, each when it is computed, and end the step when all are.

        Args:
            gradients: one for each variable; None where the loss does not depend on it.
            token: after which the first may leave.
            beside: tokens of marks.

        Returns:
            a token after which averages may be waited for.
        """
        left = []
        for group in self.groups:
            places = [place for place in group if gradients[place] is not None]
            if places:
                dense = [self._dense(place, gradients[place]) for place in places]
                left.append(self._call(self._ready(places), [*dense, token], tf.int32))
        return self._call(self._end, [token, *left, *beside], tf.int32)

    def come(self, places: Sequence[int], token: Any) -> tuple[list[Any], Any]:
        """The averages of a group's gradients, and the token after which the next ones may be waited for."""
        specs = [self.specs[place] for place in places]

        def wait(_: Any) -> tuple[Any, ...]:
            if 0 in places and self.apart:
                self._wait_for_all()
            return *(self.averaging.wait(place) for place in places), _token()

        *averages, token = self._call(wait, [token], [*(tf.as_dtype(spec.dtype) for spec in specs), tf.int32])
        for average, spec in zip(averages, specs, strict=True):
            average.set_shape(spec.shape)
        return averages, token

    def average(self, gradients: Sequence[Any], *beside: Any, after: Any = None) -> list[Any]:
        """Averages over all ranks; None stays None. No gradient leaves before the token `after`, if there is one."""
        token = self.leave(gradients, self.token() if after is None else after, *beside)
        averages: list[Any] = [None] * len(gradients)
        for group in self.groups:
            places = [place for place in group if gradients[place] is not None]
            if places:
                came, token = self.come(places, token)
                for place, average in zip(places, came, strict=True):
                    averages[place] = average
        return averages

    def _ready(self, places: Sequence[int]) -> Callable[..., Any]:
        def ready(*gradients: Any) -> Any:
            held = list(zip(places, gradients[:-1], strict=True))  # the last one is a token
            for place, gradient in reversed(held):  # in the order of a backward pass, to which its time belongs
                self.averaging.ready(place, gradient)
            return _token()

        return ready

    def _wait_for_all(self) -> None:
        """Let the forward pass begin behind all averages, to see how long it computes."""
        self.apart -= 1
        for place in range(len(self.specs)):
            self.averaging.wait(place)
        self.averaging.begin(alone=True)

    def _end(self, *_: Any) -> Any:
        self.averaging.end()
        return _token()

    def _call(self, action: Callable[..., Any], inputs: Sequence[Any], outputs: Any) -> Any:
        """Call Python from within the graph. An error is kept, because TensorFlow passes on only its text."""

        def run(*arrays: Any) -> Any:
            _keep_state()
            try:
                return action(*arrays)
            except BaseException as error:
                self.failure = self.failure or error
                raise

        return tf.numpy_function(run, inputs, outputs, stateful=False)

    def _dense(self, place: int, gradient: Any) -> Any:
        """A gradient as a whole array; one of an embedding has the rows of a batch."""
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if place not in self._told_sparse:
            self._told_sparse.add(place)
            spec = self.specs[place]
            log.info("the gradient of '%s' is sparse: all of its %d elements travel", spec.name, spec.size)
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, self.specs[place].shape[0])


def specs_of(variables: Sequence[Any]) -> list[ArraySpec]:
    """Variables as the exchange knows them; those of one layer follow on each other."""
    names = _unique([_path(variable) for variable in variables])
    return [
        ArraySpec(name, name.rpartition("/")[0] or name, tuple(variable.shape), tf.as_dtype(variable.dtype).name)
        for name, variable in zip(names, variables, strict=True)
    ]


def _path(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


def _unique(names: Sequence[str]) -> list[str]:
    """Names with a number behind those that were there before."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return unique


def _keep_state() -> None:
    """Let this thread keep its state in Python, which TensorFlow's would make and free in every call."""
    thread = threading.get_ident()
    if thread not in _known:
        _known.add(thread)
        ctypes.pythonapi.PyGILState_Ensure()  # never released: these threads live as long as the process


def _token() -> Any:
    return tf.int32.as_numpy_dtype(_DONE)
