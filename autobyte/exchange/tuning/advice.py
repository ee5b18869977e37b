"""What rank 0 makes of a window: statistics, a choice, a plan. It has a thread of its own; no step waits for it."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np

from autobyte.compilations import is_compiling
from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.exchange.planning import MeasuredPlan, NamedLayer, planned_order, priced, timed
from autobyte.exchange.tuning.audition import Audition
from autobyte.exchange.tuning.callback import State
from autobyte.exchange.tuning.costs import NOMINAL_S, BlockCosts
from autobyte.exchange.tuning.kept import Trial
from autobyte.exchange.tuning.recording import Recording
from autobyte.exchange.tuning.search import Search
from autobyte.exchange.tuning.subject import TunedTraining
from autobyte.exchange.tuning.window import RankWindow
from autobyte.job import Floats, Job
from autobyte.trace import Measurement, RuntimeStats
from autobyte.tuning import WARMUP, WINDOW, Tuning

log = logging.getLogger("autobyte")

DRIFT = 0.1  # relative change of times or rates that calls for a new plan
NOTICE = 2  # steps from the announcement that a window ends until all ranks have seen it
SLOW = 3  # steps behind the warm-up that tell that a config is too slow, if all of them do
BEHIND = 1.15  # times the fastest config's step: what is slower cannot win; 5 % may be noise
PARTING_S = 2.0  # how long the end of training waits for a thought


@dataclass(frozen=True)
class Window:
    """A window of one config on all ranks.

    Args:
        config: in force in it.
        first: its first step.
        step_s: of the rank whose median is largest, shape [steps] (s).
        forward_s, backward_s: shape [ranks, layers] (s).
        totals: of the blocks that went over the wire, as `costs.totals` has them, shape [ranks, 4].
        sent: blocks with little in flight and all blocks, as `costs.sent` has them, shape [ranks, 2, 4]; or None.
        exposed_s: of a step, for how long the model stood still for averages, shape [ranks] (s); or None.
        reduced: whether gradients went by PyTorch's reducer: only steps were measured, and layers' times are those of
            an earlier window.
    """

    config: Config
    first: int
    step_s: Floats
    forward_s: Floats
    backward_s: Floats
    totals: Floats
    sent: Floats | None = None
    exposed_s: Floats | None = None
    reduced: bool = False

    @classmethod
    def of(cls, config: Config, first: int, ranks: Sequence[RankWindow], *, reduced: bool = False) -> Self:
        """A window from what every rank measured in it.

        Args:
            config: in force in it.
            first: its first step.
            ranks: what each of them measured.
            reduced: whether gradients went by PyTorch's reducer.
        """
        return cls(
            config,
            first,
            max((each.step_s for each in ranks), key=np.median),
            np.stack([each.forward_s for each in ranks]),
            np.stack([each.backward_s for each in ranks]),
            np.stack([each.totals for each in ranks]),
            np.stack([each.sent for each in ranks]),
            None if reduced else np.array([each.exposed_s for each in ranks]),
            reduced,
        )

    @property
    def per_byte_s(self) -> Floats:
        """How long the link was busy per byte, shape [ranks] (s)."""
        ratio: Floats = self.totals[:, 2] / np.maximum(self.totals[:, 1], 1.0)
        return ratio

    @property
    def slowest(self) -> int:
        """The rank whose layers take longest."""
        return int((self.forward_s + self.backward_s).sum(axis=1).argmax())

    @property
    def slowest_exposed_s(self) -> float | None:
        """Exposed communication of that rank in a step (s); None where it was not measured."""
        return None if self.exposed_s is None else float(self.exposed_s[self.slowest])

    @property
    def overlap(self) -> float | None:
        """Share of that rank's communication for which its model did not stand still; None where it is not known."""
        busy_s = float(self.totals[self.slowest, 2])
        if self.slowest_exposed_s is None or busy_s <= 0:
            return None
        return max(0.0, 1 - self.slowest_exposed_s / busy_s)

    def holds(self, now: "Window", drift: float = DRIFT) -> bool:
        """Whether a plan that was made from this window is still good in a new one.

        A plan that was made from less than a whole window, as the first one is, is always made again.

        Args:
            now: the new one.
            drift: relative change of times or rates that calls for a new plan.
        """
        if len(self.step_s) < WINDOW:
            return False
        before = (self.forward_s + self.backward_s)[self.slowest]
        after = (now.forward_s + now.backward_s)[now.slowest]
        compute = np.abs(after - before).sum() / max(before.sum(), 1e-9)
        if self.config != now.config:  # other blocks cost differently
            return bool(compute <= drift)
        wire = np.median(now.per_byte_s) / max(np.median(self.per_byte_s), 1e-15) - 1
        return bool(max(compute, abs(wire)) <= drift)


@dataclass(frozen=True)
class Advice:
    """What all ranks are to use.

    Args:
        plan: config, job and order.
        brief: whether the config is on trial, in a window that ends early.
        reduced: whether gradients are to go by PyTorch's reducer, where all ranks can.
    """

    plan: MeasuredPlan
    brief: bool
    reduced: bool = False

    def to_json(self) -> dict[str, Any]:
        """The answer in plain JSON, for the other ranks."""
        return self.plan.to_json() | {"brief": self.brief, "reduced": self.reduced}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], job: Job) -> Self:
        """Read what `to_json` wrote; `job` is this rank's, which differs from rank 0's only in what was measured."""
        return cls(MeasuredPlan.from_json(data, job), data["brief"], data["reduced"])


class Adviser:
    """Takes a window, and has an answer some time later: what all ranks are to use, or nothing new.

    Args:
        training: whose plans are made.
        layers: of the model, in the order of their first call.
        search: makes the tuning, or measures candidates of all policies (an *audition*), and is told when that has
            ended. With None the config stays, and only the sequence is planned.
        drift: relative change of times or rates that calls for a new plan.
        recording: is given every window, but for those whose gradients went by PyTorch's reducer.
        reducible: whether gradients can go by PyTorch's reducer, as far as this rank knows.
    """

    def __init__(
        self,
        training: TunedTraining,
        layers: Sequence[NamedLayer],
        search: Search | None = None,
        *,
        drift: float = DRIFT,
        recording: Recording | None = None,
        reducible: bool = False,
    ) -> None:
        self._training = training
        self._layers = layers
        self._search = search
        self._drift = drift
        self._recording = recording
        self._thread: threading.Thread | None = None
        self._planned: Window | None = None  # from which the plan in force was made
        self._begun = False  # the first window has come
        self._on_trial = False  # the tuner has asked for another config than the best so far
        self._stale = False  # the plan in force is not the last answer
        self._lock = threading.Lock()  # guards the answer
        self._epoch = 0  # how often `forget` was called: thoughts of an earlier epoch are dropped
        self.tuning: Tuning | None = None
        self.latest: Window | None = None
        self.least_s: float | None = None  # the shortest median step of a window
        self.answer: Advice | None = None
        self._costs: defaultdict[str, BlockCosts] = defaultdict(BlockCosts)  # by engine
        self._told = False
        self.failure = ""
        self.cpu_s = 0.0  # of the tuner and the planner
        self.trials: dict[Config, Trial] = {}
        self.reducible = reducible

    @property
    def state(self) -> State:
        """Where the search is; one that adapts for as long as training goes on is settled while its best runs."""
        if self._search is None:
            return "fixed"
        compiling = is_compiling()
        if self._thinks and (compiling or not self.trials):
            return "compiling" if compiling else "thinking"
        if not self._begun:
            return "starting"
        if (audition := self._search.audition) is not None:
            settled = audition.over or (audition.waits and bool(self.trials))
            return "settled" if settled else "starting" if audition.waits else "searching"
        if self.tuning is None:
            return "settled"
        return "searching" if self._search.budget is not None or self._on_trial or not self.trials else "settled"

    @property
    def _thinks(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def fastest(self) -> tuple[Config, float] | None:
        """The config whose mean step is shortest so far, and that step (s)."""
        trials = self.trials
        best = min(trials, key=lambda config: trials[config].step_s, default=None)
        return None if best is None else (best, trials[best].step_s)

    def consult(self, window: Window) -> None:
        """Start to think about a window. Skip it while an earlier one is thought about, or its answer not taken."""
        if self.answer is not None or self._thinks:
            return
        arguments = (window, self._epoch)
        self._thread = threading.Thread(target=self._think, args=arguments, name="autobyte-adviser", daemon=True)
        self._thread.start()

    def passed(self, steps: Sequence[float], *, reduced: bool, switch_s: float = 0.0) -> None:
        """Note how long training took, for what trials may cost.

        Args:
            steps: times of steps under the config in force (s).
            reduced: whether gradients went by PyTorch's reducer.
            switch_s: what changing to it has taken (s).
        """
        audition = None if self._search is None else self._search.audition
        if audition is None or audition.budget is None:
            return
        kept = self._training.config == audition.buckets and reduced == self.reducible and not self._thinks
        audition.budget.add(steps, tried=not kept)
        audition.budget.lose(switch_s)

    def enough(self, steps: Sequence[float]) -> bool:
        """Whether a window may end: its tuner wants a short one, or it is hopeless, or clearly too slow to win."""
        return self._brief(steps) or self.hopeless(steps) or self._loses(steps)

    def _brief(self, steps: Sequence[float]) -> bool:
        if self.tuning is None or self._thinks or self.answer is not None:  # that is about the window before
            return False
        wanted = self.tuning.iterations
        return wanted < WINDOW and wanted - NOTICE <= len(steps) < WINDOW - 1

    def hopeless(self, steps: Sequence[float]) -> bool:
        """Whether a config's first window is so much slower than the best that it need not run to its end.

        Steps are told without those of the warm-up, except that one step of thrice the best time is enough. A config
        that has run before may be slow because the job is, and only whole windows show that.
        """
        settled = self.latest is not None and self.latest.config == self._training.config
        if settled or not WARMUP <= len(steps) < WINDOW - 1:
            return False
        best = min((trial.step_s for trial in self.trials.values()), default=np.inf)
        return max(steps, default=0.0) > 3 * best or min(steps[WARMUP:], default=0.0) > 1.5 * best

    def _loses(self, steps: Sequence[float]) -> bool:
        """Whether a config that is heard for the first time in an audition is clearly too slow to win.

        Three steps tell, if none of them is near the fastest: such a trial costs seven steps in place of ten, or nine
        where averages wait on a device. The first window on an engine is whole: its candidates are chosen from it.
        """
        audition = None if self._search is None else self._search.audition
        if audition is None or audition.over or audition.opens or self._thinks:
            return False
        if not WARMUP + SLOW <= len(steps) < WINDOW - 1:
            return False
        heard = audition.trials
        if not heard or self._training.config in heard:
            return False
        return min(steps[WARMUP:]) > BEHIND * min(trial.step_s for trial in heard.values())

    def take(self) -> Advice | None:
        """The answer, once."""
        with self._lock:
            answer, self.answer = self.answer, None
        return answer

    def forget(self) -> None:
        """Drop the answer and the thought under way: they are about a config that is no longer in force."""
        with self._lock:
            self._epoch += 1
            self._stale = True
            self.answer = None

    def stay(self) -> None:
        """Try nothing else: the loop changes averages, which no block that travels would bear."""
        audition = None if self._search is None else self._search.audition
        if audition is not None and not audition.stays:
            now = self._training.config
            audition.stay(now if now.policy == "ddp" else audition.buckets)
            self.forget()
            log.info(
                "gradients are changed between backward() and step(), so DDP's buckets stay and nothing else is "
                "tried; call this optimizer's clip_grad_norm_() instead, or synchronize() before the change"
            )

    def plan(self, config: Config) -> Advice | None:
        """Make what all ranks need to switch to a config; None before the first window."""
        return None if self.latest is None else self._plan(self.latest, config)

    def part(self) -> None:
        """Training is over: keep what the tuner has found, unless it is still thinking, and let go of it."""
        try:
            if self._search is not None:
                if self._thread is not None:
                    self._thread.join(PARTING_S)
                self._keep(self._search)
        except Exception:  # training is over, and was right
            log.exception("what the tuner had found could not be kept")
        finally:
            self.close()

    def _keep(self, search: Search) -> None:
        """Keep the best config of a search that has not ended, unless it is slower than the first, and say so."""
        audition, tuning = search.audition, self.tuning
        measured = len(self.trials) if audition is None else len(audition.trials)
        if self._thinks:
            when = f"while {search.tuner} was {'compiling' if is_compiling() else 'thinking'}"
        elif audition.over or audition.waits if audition is not None else self._begun and tuning is None:
            return  # it was said when the search ended, or it has not cost anything
        elif audition is not None or tuning is None or self.latest is None or measured < 2:
            when = "before the search did"
        else:
            first, best = next(iter(self.trials)), tuning.best
            if best in self.trials and self.trials[best].step_s <= self.trials[first].step_s:
                search.finish(self.measured_job(self.latest), best, self.trials, finished=False)
                return
            when = f"before {search.tuner} had found a config faster than {first.full_label}"
        log.info("training ended %s: nothing is kept of this search; configs measured: %d", when, measured)

    def close(self) -> None:
        """Let go of the tuner."""
        if self.tuning is not None:
            self.tuning.close()
            self.tuning = None

    def measured_job(self, window: Window, costs: tuple[float, float] | None = None) -> Job:
        """The job as a window showed it: layer times, and links that cost what blocks did.

        Args:
            window: the latest.
            costs: seconds per block and per byte; by default those fitted to all windows of its engine.
        """
        known = self._costs[window.config.engine]
        per_block_s, per_byte_s = costs or (known.per_block_s, known.per_byte_s)
        job, slowest = self._training.job, window.slowest
        names = self._training.exchange.parameters
        times = window.forward_s[slowest].tolist(), window.backward_s[slowest].tolist()
        rate = float(job.cluster.traffic.max()) / max(per_byte_s, 1e-12)
        job = replace(job, model=timed(job.model, self._layers, names, *times))
        return priced(job, bytes_per_s=rate, per_block_s=per_block_s)

    def _think(self, window: Window, epoch: int) -> None:
        began_s = time.thread_time()
        try:
            costs = self._costs[window.config.engine]
            if not window.reduced:
                costs.add(window.config, window.totals)
            median_s = float(np.median(window.step_s))
            self.least_s = median_s if self.least_s is None else min(self.least_s, median_s)
            if costs.assumed and not self._told:
                self._told = True
                log.info(
                    "too few blocks, or too much alike, to tell what one costs: until that is measured, plans assume "
                    "%g ms", 1e3 * NOMINAL_S,
                )  # fmt: skip
            if self._recording is not None and not window.reduced:  # which shows no link
                self._recording.add(self._measured(window), self.measured_job(window).model)
            config = self._choose(window)
            planned = None if self._stale or config != window.config else self._planned
            answer = None if self._stays(window, planned) else self._plan(window, config)
        except (Exception, SystemExit) as error:  # training goes on with the plan it has
            if not threading.main_thread().is_alive():
                return  # the script is over, and what planning needs may be gone
            self.failure = f"{type(error).__name__}: {error}"
            log.exception("could not plan from a window; the plan stays")
            return
        self.cpu_s += time.thread_time() - began_s
        with self._lock:
            if epoch != self._epoch:
                return
            if answer is not None or (planned is not None and planned.config != config):
                self._planned, self._stale = window, False  # later windows are compared with this one
            self.latest, self.answer = window, answer

    def _stays(self, window: Window, planned: Window | None) -> bool:
        """Whether the plan in force is still good, which was made from a window; None if it is another's."""
        if planned is None or window.reduced != self._reduces(window.config):
            return False
        return window.reduced or planned.holds(window, self._drift)

    def _reduces(self, config: Config) -> bool:
        """Whether gradients are to go by PyTorch's reducer: where DDP's buckets are on trial, or have won."""
        audition = None if self._search is None else self._search.audition
        if audition is None or audition.looks or config.policy != "ddp":
            return False
        return self.reducible

    def _choose(self, window: Window) -> Config:
        """The config that runs next."""
        if self._search is not None and self._search.audition is not None:
            return self._audition(window, self._search, self._search.audition)
        if not self._begun:  # the first window ran without a plan from measured times
            self._begun = True
            if self._search is not None:
                try:
                    self.tuning = self._search.begin(self.measured_job(window), window.config)
                except InputError as error:  # a plan is made without it
                    self.failure = f"{type(error).__name__}: {error}"
                    log.error("%s; training goes on without it", error)
                except Exception as error:
                    self.failure = f"{type(error).__name__}: {error}"
                    log.exception("the tuner cannot begin; training goes on without it")
            return window.config
        tuning = self.tuning
        if tuning is None:
            return window.config
        self._try(window, tuning.iterations / WINDOW)
        assert self._search is not None
        tried = sum(trial.windows for trial in self.trials.values())
        last = self._search.budget is not None and tried >= self._search.budget
        chosen = tuning.observe(self._measured(window), last=last)
        self._on_trial = chosen != tuning.best
        self.cpu_s += tuning.decisions[-1].cpu_s
        self.failure = self.failure or tuning.decisions[-1].failure
        if last:
            self.close()
            self._search.finish(self.measured_job(window), chosen, self.trials)
        return chosen

    def _measured(self, window: Window) -> Measurement:
        """The measurement that tuners are told."""
        job = self._training.job
        rate = job.cluster.traffic / np.maximum(window.per_byte_s, 1e-15)
        speed = np.full(len(rate), job.model.batch_size / max(window.step_s.mean(), 1e-9))
        servers, wire_bytes = job.cluster.servers, job.gradients.total_bytes
        times = window.forward_s, window.backward_s
        stats = RuntimeStats(*times, rate, rate, speed, servers, wire_bytes, window.sent)
        return Measurement(window.config, window.first, tuple(window.step_s.tolist()), WARMUP, stats)

    def _audition(self, window: Window, search: Search, audition: Audition) -> Config:
        """The config that runs next in an audition of policies."""
        whole = min(1.0, len(window.step_s) / WINDOW)
        step_s = self._try(window, whole) if self._begun else None  # the first ran without a plan from measured times
        self._begun = True
        ended, begun = audition.over, audition.left is not None
        usual_s, measured = audition.usual_s, partial(self.measured_job, window)
        chosen = audition.choose(measured, window.config, step_s, fresh=not window.reduced)
        search.won = None if not audition.over or audition.usual_s is None else (chosen, audition.usual_s)
        if not begun and audition.left is not None:
            log.info(
                "search begun: %d configs are measured, in windows of at most ten steps; DDP's best buckets are one "
                "of them%s", 1 + (audition.left or 0), search.elsewhere,
            )  # fmt: skip
        if audition.over and not ended:
            search.finish(measured(), chosen, audition.trials)
        elif ended and not audition.over:
            assert usual_s is not None and step_s is not None, "a winner is compared with what it was"
            log.info(
                "search begun again: under %s a step takes %.4g ms now, and took %.4g ms",
                window.config.full_label, 1e3 * step_s, 1e3 * usual_s,
            )  # fmt: skip
        return chosen

    def _try(self, window: Window, whole: float = 1.0) -> float:
        """Add a window, or part of one, to the trials of its config, without the warm-up.

        Returns:
            its step (s): the mean; in auditions the median, because a single step may wait for a lost packet.
        """
        steps = window.step_s[WARMUP:] if len(window.step_s) > WARMUP else window.step_s
        step_s = float(steps.mean() if self.tuning is not None else np.median(steps))
        so_far = self.trials.get(window.config, Trial())
        windows = so_far.windows + whole
        trial = Trial(windows, so_far.step_s + (step_s - so_far.step_s) * whole / windows)
        self.trials = {**self.trials, window.config: trial}  # replaced as a whole: the training thread reads it
        return step_s

    def _plan(self, window: Window, config: Config) -> Advice:
        engine = config.engine if config.engine in self._costs else window.config.engine
        costs = self._costs[engine]
        job = self.measured_job(window, (costs.per_block_s, costs.per_byte_s))
        brief = self.tuning is not None and self.tuning.iterations < WINDOW
        order = planned_order(job, config, beside=self.measured_job(window, costs.beside()))
        return Advice(MeasuredPlan(config, job, order), brief, self._reduces(config))
