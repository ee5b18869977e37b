"""Tuning while training: after every window statistics are gathered, rank 0 thinks, and all switch at one step."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from autobyte.config import Config
from autobyte.exchange.control import Tally
from autobyte.exchange.planning import NamedLayer
from autobyte.exchange.tuning.advice import Advice, Adviser, Window
from autobyte.exchange.tuning.callback import Callback, WindowReport
from autobyte.exchange.tuning.costs import sent, totals
from autobyte.exchange.tuning.subject import LayerClock, TunedTraining
from autobyte.exchange.tuning.window import RankWindow
from autobyte.job import Floats
from autobyte.scheduler.policies import make_plan
from autobyte.tuning import BRIEF, WARMUP, WINDOW

log = logging.getLogger("autobyte")

FIRST = 3  # steps before the first plan on measured times
EXACT = 3  # steps of a window in which a device's layers are timed; the step behind them reads the times


class _Ended(NamedTuple):
    """A window, and the measurements of all ranks in it, which are on their way.

    Args:
        rows: `RankWindow.pack` of every rank.
        config: in force in it.
        first, steps: its first step, and how many.
        end: steps of the training when it ended.
        reduced: whether gradients went by PyTorch's reducer.
    """

    rows: Tally
    config: Config
    first: int
    steps: int
    end: int
    reduced: bool


class Online:
    """Counts steps, gathers what a window showed, and switches when rank 0 has an answer.

    A window ends early if it is hopelessly slow, or clearly too slow to win an audition, or if its tuner wants a
    short one. When rank 0 has something to say, it sets a flag that travels with the counts of missing gradients,
    which every step makes anyway. So all ranks see the flag after the same step.

    Args:
        training: what is tuned.
        layers: of the model, in the order of their first call, the same on all ranks.
        times: of these layers.
        adviser: thinks, on rank 0; None on others.
        callback: is told of every window on rank 0; None tells nobody.
        hand_over: lets gradients go by the reducer, on all ranks at once, and says whether it can; None: not yet.
    """

    def __init__(
        self,
        training: TunedTraining,
        layers: Sequence[NamedLayer],
        times: LayerClock,
        adviser: Adviser | None,
        callback: Callback | None = None,
        hand_over: Callable[[], bool | None] = lambda: False,
    ) -> None:
        self._callback = callback
        self._hand_over = hand_over
        self._training = training
        self._layers = layers
        self._times = times
        self.adviser = adviser
        self._planned = False
        self._samples: deque[Any] = deque(maxlen=WINDOW)  # of layers' times, which are read when the window ends
        self._layer_s: tuple[Floats, Floats] = (np.zeros(len(layers)), np.zeros(len(layers)))
        training.session.runner.forget()  # the first step, in which ranks wait for each other to begin
        training.exchange.waits.forget()
        self._exposed_s = training.exchange.exposed_s  # before the steps that count
        self._steps: list[float] = []
        self._uncounted = 0  # of these, whose blocks and waits do not count
        self._first = 0
        self._last_s = time.perf_counter()
        self._announced = False
        self._ended: deque[_Ended] = deque()  # windows whose measurements are on their way
        self._brief = False  # the config in force is on trial, in a short window
        self._switched = False  # this window began with another config

    def after_step(self, *, announced: bool) -> None:
        """A step was taken: gather at the end of a window, or do what rank 0 announced. Collective.

        Args:
            announced: whether rank 0 has, the same on all ranks.
        """
        now = time.perf_counter()
        self._steps.append(now - self._last_s)
        self._last_s = now
        self._hear()
        if self._training.exchange.has_changed() and self.adviser is not None:
            self.adviser.stay()
        sample = self._times.sample()
        if sample is not None:
            self._samples.append(sample)
        if self._switched and len(self._steps) == WARMUP:  # the engine has made room for new blocks meanwhile
            self._count()
        if announced:
            self._heed()
        elif len(self._steps) == (WINDOW if self._planned else FIRST):
            self._end_window()
        length = BRIEF if self._brief else WINDOW
        self._times.be_exact(not self._planned or length - EXACT - 1 <= len(self._steps) < length - 1)

    def use(self, config: Config) -> None:
        """Switch now. Collective.

        Raises:
            InputError: the config's policy, or a knob of it, is unknown.
        """
        training, adviser = self._training, self.adviser
        make_plan(training.job, config)  # on every rank, before one of them waits for another
        answer = adviser.plan(config) if adviser is not None else None
        answer = self._share(answer)
        if answer is None:
            training.replan(training.job, config, None)
        else:
            self._follow(answer)
        self.restart()

    def skip(self) -> None:
        """Let the time since the last step count to none."""
        self._last_s = time.perf_counter()

    def restart(self) -> None:
        """Begin a window, and forget what rank 0 was thinking: another config is in force."""
        if self.adviser is not None:
            self.adviser.forget()
        self._ended.clear()
        self.reset()
        self._last_s = time.perf_counter()

    def reset(self) -> None:
        """Begin a window."""
        self._first += len(self._steps)
        self._steps = []
        self._samples.clear()
        self._count()

    def _count(self) -> None:
        """From here on blocks and waits count."""
        self._uncounted = len(self._steps)
        self._training.session.runner.passages.clear()
        self._exposed_s = self._training.exchange.exposed_s

    def announces(self) -> bool:
        """Whether to announce something now: that there is an answer, or that this window may end. Only once."""
        if self.adviser is None or self._announced:
            return False
        self._announced = self.adviser.answer is not None or self.adviser.enough(self._steps)
        return self._announced

    def _heed(self) -> None:
        """Do what rank 0 announced."""
        self._announced = False
        answer = self._share(self.adviser.take() if self.adviser is not None else None)
        if answer is None:
            if len(self._steps) > max(WARMUP, self._training.exchange.out):  # else it was about the window before
                self._end_window()
            return
        self._tell_passed()
        self._follow(answer)
        self.reset()
        before_s, self._last_s = self._last_s, time.perf_counter()  # the time of the switch counts to no step
        if self.adviser is not None:
            self.adviser.passed([], reduced=answer.reduced, switch_s=self._last_s - before_s)

    def _tell_passed(self) -> None:
        """Tell rank 0 what the steps so far have taken."""
        if self.adviser is not None:
            self.adviser.passed(self._steps, reduced=self._training.exchange.reduction is not None)

    def _share(self, answer: Advice | None) -> Advice | None:
        """Rank 0's answer, on every rank. Collective."""
        training = self._training
        data = training.control.share(None if answer is None else answer.to_json())
        return None if data is None else Advice.from_json(data, training.job)

    def _follow(self, answer: Advice) -> None:
        plan = answer.plan
        assert plan.job is not None, "rank 0 answers when it has measured"
        before, step = self._training.config, self._training.progress.steps
        self._training.replan(plan.job, plan.config, plan.order)
        now = self._training.config  # the one before where a rank cannot use the other
        self._switched = before != now
        if self.adviser is not None and before != now:
            log.info("step %d: %s replaces %s", step, now.full_label, before.full_label)
        self._brief = answer.brief
        if not (answer.reduced and now == plan.config):
            return
        handed_over = self._hand_over()
        if self.adviser is not None and handed_over is not None:
            self.adviser.reducible = handed_over
            if handed_over:
                log.info("step %d: gradients go by PyTorch's own reducer, as they do with DDP", step)

    def _end_window(self) -> None:
        training = self._training
        rows = training.control.gather_later(torch.from_numpy(self._measured().pack()))
        reduced = training.exchange.reduction is not None
        ended = _Ended(rows, training.config, self._first, len(self._steps), training.progress.steps, reduced)
        self._ended.append(ended)
        self._planned, self._brief, self._switched = True, False, False
        self._tell_passed()
        self.reset()
        self._hear(wait=not training.exchange.ahead_of_ranks)

    def _hear(self, *, wait: bool = False) -> None:
        """Consult about windows whose measurements have come from all ranks."""
        while self._ended and (wait or len(self._ended) > 1 or self._ended[0].rows.there):
            ended = self._ended.popleft()
            rows = ended.rows.wait().numpy()
            if self.adviser is None:
                continue
            ranks = RankWindow.unpack(rows, steps=ended.steps)
            window = Window.of(ended.config, ended.first, ranks, reduced=ended.reduced)
            if self._callback is not None:
                self._callback.tell(self._told(window, ended.end, self.adviser))
                self._last_s = time.perf_counter()  # the time of the callback counts to no step
            self.adviser.consult(window)

    def _told(self, window: Window, end: int, adviser: Adviser) -> WindowReport:
        """The window for `on_window=`, which ended before a step."""
        best, best_s = adviser.fastest or (None, None)
        step_s = tuple(window.step_s.tolist())
        return WindowReport(
            end - len(step_s),
            end - 1,
            window.config,
            step_s,
            adviser.state,
            best,
            best_s,
            window.slowest_exposed_s,
            window.overlap,
        )

    def _measured(self) -> RankWindow:
        """This rank's window."""
        if self._samples:  # else the window ended before layers were timed: keep the last times
            forward_s, backward_s = self._times.read(self._samples)
            self._layer_s = np.median(forward_s, axis=0), np.median(backward_s, axis=0)
        passages, steps = list(self._training.session.runner.passages), len(self._steps) - self._uncounted
        crowding = sent(passages, steps, self._training.exchange.plan.credit_bytes)
        forward_s, backward_s = self._layer_s
        exposed_s = (self._training.exchange.exposed_s - self._exposed_s) / max(steps, 1)
        return RankWindow(np.array(self._steps), forward_s, backward_s, totals(passages, steps), crowding, exposed_s)
