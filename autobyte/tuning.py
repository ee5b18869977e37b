"""The loop: measure a window, tell, ask, switch."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from autobyte.best import JUMP, best_config, changed
from autobyte.config import Config, Space
from autobyte.consultation import Answer, Consultation
from autobyte.errors import InputError
from autobyte.job import Job
from autobyte.trace import Measurement
from autobyte.tuners import TUNERS, Tuner, base

WINDOW = base.WINDOW
BRIEF = 5  # iterations of a window whose tuner asks for no more: what it tries may be bad
WARMUP = 2  # of them still under the influence of the config before
PATIENCE_S = 1.0  # what a training job waits for a tuner
KEEP = 256  # windows and decisions that are remembered: a job may train for weeks


class Trainer(Protocol):
    """Something that trains, in virtual time or in real time."""

    def measure(self, config: Config, *, iterations: int, warmup: int) -> Measurement:
        """Train for a window under a config."""
        ...


@dataclass(frozen=True)
class Decision:
    """One turn of the loop: what a window showed, and the config that is in force after it."""

    measurement: Measurement
    config: Config
    cpu_s: float  # of the tuner's own thread, measured
    failure: str = ""  # what the tuner failed with, in this turn


class Tuning:
    """Decides what runs next. A search that ends, rests or fails slows nothing down: the best so far is at hand.

    Trial 0 is the space's default. What a window showed is told to the tuner, which is asked for the next config; if
    it has none, fails, or does not answer in time, the best so far runs. The last decision of all is the best so far,
    or what the tuner asks for where that is as good as the noise can tell.

    Args:
        tuner: chooses.
        space: where, and what trial 0 is.
        patience_s: how long a decision waits for the tuner (s).
    """

    def __init__(self, tuner: Tuner, space: Space, *, patience_s: float = PATIENCE_S) -> None:
        self.iterations = BRIEF if tuner.brief else WINDOW
        self._consultation: Consultation | None = Consultation(tuner, space, patience_s=patience_s)
        self._space = space
        self._windows: deque[Measurement] = deque(maxlen=KEEP)
        self._count = 0
        self._anew = False  # the job has changed, and the default has not run since
        self.config = space.default
        self.decisions: deque[Decision] = deque(maxlen=KEEP)

    @property
    def best(self) -> Config:
        """What did best in the latest windows; the default, unless another is better by more than noise.

        Once the job has changed that is the default, until it has run on the job as it is.
        """
        return self._space.default if self._anew else best_config(self._windows, self._space.default)

    def observe(self, measurement: Measurement, *, last: bool = False) -> Config:
        """Take in a window, and say what runs in the next; `iterations` is then how long that shall be.

        Args:
            measurement: the window.
            last: there will be no other, and its config stays.
        """
        before = next((w for w in reversed(self._windows) if w.config == measurement.config), None)
        if before is not None and changed(before, measurement, jump=JUMP):
            while self._windows.popleft() is not before:
                pass  # all of another job; if what is newer is so, too, that shows when it runs again
            self._anew = True
        self._windows.append(measurement)
        self._anew = self._anew and all(w.config != self._space.default for w in self._windows)
        self._count += 1
        answer = self._consult(measurement)
        if answer.asked is None:
            self.config = self.best
        elif last:
            self.config = best_config(self._windows, self._space.default, favourite=answer.asked)
        else:
            self.config = answer.asked
        self.iterations = BRIEF if answer.brief else WINDOW
        self.decisions.append(Decision(measurement, self.config, answer.cpu_s, answer.failure))
        return self.config

    def close(self) -> None:
        """Consult the tuner no more, and let go of it."""
        if self._consultation is not None:
            self._consultation.close()
            self._consultation = None

    def _consult(self, measurement: Measurement) -> Answer:
        """Tell and ask; a tuner that fails is not consulted again."""
        nothing = Answer(self._count, None, 0.0)
        if self._consultation is None:
            return nothing
        answer = self._consultation.consult(self._count, measurement) or nothing
        if answer.failure:
            self.close()
        return answer


def make_tuner(
    name: str,
    space: Space,
    *,
    job: Job,
    seed: int = 0,
    budget: int | None = None,
    after: int | None = None,
    storage: str | None = None,
    anew: str | None = None,
) -> Tuner:
    """Make a tuner by name, and give it what it needs.

    Args:
        name: registered.
        space: where it searches.
        job: what is tuned, as far as its owner knows it: nothing of its cluster reaches the tuner.
        seed: of the tuner.
        budget: windows there will be; None if no end is known.
        after: windows for which the config of the last one stays in force; None if nobody counts them.
        storage: a URL, for tuners that keep what they find.
        anew: the name under which they keep it there, in place of what an earlier run left; None: they go on.

    Raises:
        InputError: no such tuner, or it cannot be made.
    """
    kind = TUNERS[name]
    given: dict[str, Any] = {}
    if "predictor" in kind.needs:
        from autobyte.prediction import Simulated  # noqa: PLC0415, compiles: only for those who need it

        given["predictor"] = Simulated(job)
    offered = {"after": after, "storage": storage, "anew": anew}
    given |= {need: offered[need] for need in kind.needs if need in offered}
    try:
        return kind(space, model=job.model, seed=seed, budget=budget, **given)
    except (Exception, SystemExit) as error:
        raise InputError(f"tuner '{name}' cannot be made: {type(error).__name__}: {error}") from error


def tune(
    tuner: Tuner,
    trainer: Trainer,
    space: Space,
    *,
    budget: int,
    progress: Callable[[Decision], None] = lambda decision: None,
    patience_s: float = 60.0,
) -> list[Decision]:
    """Train for `budget` windows of 10 iterations, tuning meanwhile; those whose tuner is brief are two of 5.

    In virtual time nobody waits, so a decision has patience: the same seed gives the same run on a busy machine.

    Returns:
        one decision per window; the last one's config is the one to keep.

    Raises:
        InputError: a budget below 1.
    """
    if budget < 1:
        raise InputError(f"budget must be at least 1, got {budget}")
    tuning = Tuning(tuner, space, patience_s=patience_s)
    decisions, left = list[Decision](), budget * WINDOW
    try:
        while left:
            iterations = min(tuning.iterations, left)
            measurement = trainer.measure(tuning.config, iterations=iterations, warmup=WARMUP)
            left -= iterations
            tuning.observe(measurement, last=not left)
            decisions.append(tuning.decisions[-1])
            progress(decisions[-1])
    finally:
        tuning.close()
    return decisions
