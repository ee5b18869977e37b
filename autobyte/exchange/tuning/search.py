"""What chooses while training goes on, a tuner or an audition, and what becomes of its result."""

import logging
import math
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autobyte.config import Config, Space
from autobyte.errors import AutoByteError, FileError, InputError
from autobyte.exchange.arguments import AUTO, KEEP, check_policy, check_space
from autobyte.exchange.tuning.audition import Audition
from autobyte.exchange.tuning.kept import Fingerprint, Kept, Trial, by_engine, fastest_by_engine, yardstick
from autobyte.exchange.tuning.losses import LossBudget
from autobyte.exchange.tuning.subject import TunedTraining
from autobyte.job import Job
from autobyte.scheduler.policies import POLICIES
from autobyte.tuners.base import TUNERS, Tuner
from autobyte.tuning import Tuning, make_tuner

ONCE = 30  # windows of who searches once
STAYS = 30  # windows for which what a search has found stays, at least
LATE = ("kvstore", "byteps")  # engines whose servers acknowledge late: the link rests while a block travels alone
PATIENCE_S = 60.0  # no step waits for a tuner; one that takes longer is not asked again

log = logging.getLogger("autobyte")


class Search:
    """A tuner or an audition, its budget, and the file that keeps what it found.

    Args:
        training: what is tuned.
        tuner: registered name; None for an audition of policies.
        space: from which it may choose; None is all that the policy has.
        budget: in windows of ten steps; None is 30 for a tuner that searches once, else as long as training lasts.
        seed: of the tuner.
        keep: the file; None keeps nothing.
        share: of the time trained, what trials of an audition may cost; infinite for trials at once.

    Raises:
        InputError: no such tuner.
    """

    def __init__(
        self,
        training: TunedTraining,
        *,
        tuner: str | None,
        space: Space | None,
        budget: int | None,
        seed: int,
        keep: Path | str | None,
        share: float = math.inf,
    ) -> None:
        if tuner is not None and TUNERS[tuner].one_shot and budget is None:
            budget = ONCE
        self._training = training
        self.tuner = tuner or AUTO
        losses = None if math.isinf(share) else LossBudget(share)
        self.audition = Audition(["", *training.ways[1:]], budget=losses) if tuner is None else None
        self.budget = budget
        self.won: tuple[Config, float] | None = None  # what an audition has come to, and its step (s), on rank 0
        self._own: Config | None = None  # the user's own choice
        self._space = space
        self._seed = seed
        self._path = Path(keep) if keep is not None else None
        self._kept: Kept | None = None
        self._job = fingerprint(training, policy=AUTO if tuner is None else training.config.policy)

    @property
    def asked(self) -> bool:
        """Whether somebody has asked for it: by default, an audition waits for a budget."""
        return self.audition is None or self.audition.budget is None

    @property
    def elsewhere(self) -> str:
        """What an audition hears besides, in words."""
        others = self._training.ways[1:]
        return f"; then as many by engine {' and by '.join(others)}" if others else ""

    def resume(self) -> None:
        """Use what was found for a job like this, if rank 0 can read it. Collective.

        Raises:
            InputError: on every rank, if rank 0 cannot write the file.
        """
        training = self._training
        config: dict[str, Any] | None = None
        problem = training.control.share(self._problem() if training.rank == 0 else "")
        if problem:
            raise InputError(problem)
        if training.rank == 0:
            self._kept = self._read()
            if self._kept is not None:
                found = training.fitting(self._kept.config)
                config = found.to_json()
                if self.audition is not None:
                    self._settle(self.audition, found, self._kept.step_s)
        config = training.control.share(config)
        if config is not None:
            training.replan(training.job, Config.from_json(config), None)

    def stay(self, config: Config) -> None:
        """Search no more if nobody has asked for it: the user has chosen a config."""
        if self.audition is not None and not self.asked:
            self.audition.stay(config)
            self._own = config

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the config in force: that the user has chosen it, or its step if it won."""
        if self._own == self._training.config:
            return {"own": True}
        won = self.won
        return {} if won is None or won[0] != self._training.config else {"won_s": won[1]}

    def take_up(self, checkpoint: Mapping[str, Any]) -> None:
        """Let a checkpoint's config stay that is in force now, if it was chosen, unless a search was asked for.

        Args:
            checkpoint: what `to_json` wrote, beside config, engine and dtype; older ones lack it.
        """
        training, audition = self._training, self.audition
        config = training.fitting(Config.from_json(checkpoint["config"]))
        if audition is None or self.asked or training.config != config:
            return
        same = (checkpoint.get("engine"), checkpoint.get("wire_dtype")) == (training.engine, training.job.wire_dtype)
        if checkpoint.get("own", False):
            self.stay(config)
        elif "won_s" in checkpoint and same:
            self._settle(audition, config, checkpoint["won_s"])

    def _settle(self, audition: Audition, config: Config, step_s: float) -> None:
        audition.settle(config, step_s)
        self.won = config, step_s

    def begin(self, job: Job, running: Config) -> Tuning | None:
        """On rank 0, when a first window was measured: what decides from now on, or nothing if there is no need.

        Args:
            job: as measured.
            running: the config in force, which is the first trial: the default, one of a checkpoint or of a file.
        """
        if self._kept is not None and self._kept.finished:
            rate = self._rate(job)
            if self._kept.same_link(rate):
                return None
            log.warning(
                "%s was found on a link of %.3g Gbit/s, this one has %.3g: tuning again",
                self._path, self._kept.link_bytes_per_s * 8e-9, rate * 8e-9,
            )  # fmt: skip
        space = replace(self._space or _space_of(running.policy, job, self._training.engine), default=running)
        after = None if self.budget is None else STAYS
        tuner = made_in_time(
            self.tuner,
            lambda: make_tuner(self.tuner, space, job=job, seed=self._seed, budget=self.budget, after=after),
        )
        limit = (
            "for as long as training goes on" if self.budget is None else f"for {self.budget} windows of ten steps"
        )
        log.info("search begun: %s starts from %s and searches %s", self.tuner, running.full_label, limit)
        return Tuning(tuner, space, patience_s=PATIENCE_S)

    def finish(self, job: Job, config: Config, trials: Mapping[Config, Trial], *, finished: bool = True) -> None:
        """On rank 0: keep what was found.

        Args:
            job: as measured.
            config: what was found.
            trials: all that were measured for it, in that order.
            finished: whether the search has ended; if not, it goes on from there next time.
        """
        self._say(config, trials, finished=finished)
        if self._path is None:
            return
        first = next(iter(trials.values()))
        kept = Kept(
            self._job,
            link_bytes_per_s=self._rate(job),
            config=config,
            tuner=self.tuner,
            windows=sum(trial.windows for trial in trials.values()),
            step_s=trials[config].step_s,
            first_s=first.step_s,
            finished=finished,
            engines_s=fastest_by_engine(trials, own=self._training.engine),
        )
        try:
            kept.write(self._path)
        except AutoByteError as error:
            log.warning("%s", error)
        else:
            log.info("kept %s in %s", config.full_label, self._path)
        if finished and self.audition is None and trials[config].step_s > 1.05 * first.step_s:
            log.warning(
                "%s was slower than what training began with, %.4g ms and %.4g ms a step: the job or its links have "
                "changed meanwhile, or they are noisy; delete %s to tune again",
                config.label, 1e3 * trials[config].step_s, 1e3 * first.step_s, self._path,
            )  # fmt: skip

    def _say(self, config: Config, trials: Mapping[Config, Trial], *, finished: bool) -> None:
        """Log what a search has come to, and beside what."""
        windows, step_ms = sum(trial.windows for trial in trials.values()), 1e3 * trials[config].step_s
        when = "search ended" if finished else "training ended before the search did,"
        others = {other: trial for other, trial in trials.items() if other.policy != "ddp"}
        compared = ""
        if self.audition is not None and config.policy == "ddp" and others:
            beside = min(others, key=lambda other: others[other].step_s)
            compared = f"; DDP's buckets stay, because the fastest of the others, {beside.full_label}, takes "
            compared += f"{1e3 * others[beside].step_s:.4g} ms"
        elif (beside := yardstick(trials)) != config:
            compared = f", {beside.full_label} {1e3 * trials[beside].step_s:.4g} ms"
        if (fastest := min(trials, key=lambda each: trials[each].step_s)) != config:
            compared += f"; too few windows tell it from {fastest.full_label}, {1e3 * trials[fastest].step_s:.4g} ms"
        engines = fastest_by_engine(trials, own=self._training.engine)
        if len(engines) > 1:
            compared += f"; {by_engine(engines)}"
        log.info(
            "%s after %g windows: %s takes %.4g ms a step%s", when, windows, config.full_label, step_ms, compared
        )

    def _problem(self) -> str:
        """Why nothing can be kept where the user wants it."""
        try:
            if self._path is not None:
                Kept.check(self._path)
        except InputError as error:
            if self._path != KEEP:
                return str(error)
            log.warning("%s; nothing is kept", error)  # nobody has asked for it
            self._path = None
        return ""

    def _read(self) -> Kept | None:
        """What is in the file; nothing, and a warning, where that is damaged or something else."""
        if self._path is None:
            return None
        try:
            kept = Kept.read(self._path)
        except FileError as error:
            aside = Kept.set_aside(self._path)
            if aside is None:
                log.warning("%s; training goes on without it, and keeps nothing there", error)
                self._path = None
            else:
                log.warning("%s is damaged, and is %s now; training goes on without it", self._path, aside)
            return None
        if kept is None:
            return None
        if difference := self._job.differs(kept.job):
            log.warning("%s is not used: %s", self._path, difference)
            return None
        if self._space is not None and kept.config not in replace(self._space, default=kept.config):
            log.warning("%s is not used: its %s is not in space=", self._path, kept.config.label)
            return None
        what = "delete the file to tune again" if kept.finished else "its search had not ended, and goes on"
        log.info("using %s from %s; %s", kept.config.full_label, self._path, what)
        return kept

    def _rate(self, job: Job) -> float:
        return float(min(job.cluster.up_bytes_per_s))


def _space_of(policy: str, job: Job, engine: str) -> Space:
    """What a policy may be tuned to on an engine; where servers acknowledge late, windows hold two blocks or more."""
    space = POLICIES[policy]().space(job)
    least, most = space.credit_ratio
    return replace(space, credit_ratio=(2.0, most)) if engine in LATE and 1 <= least < 2 <= most else space


def use_kept(training: TunedTraining, path: Path, *, policy: str, tuner: str | None, space: Space | None) -> None:
    """Use the config in a kept file, as rank 0 finds it, whatever the file says of link and search. Collective.

    Args:
        training: begins with it.
        path: of the file.
        policy, tuner, space: as given to `DistributedOptimizer`.

    Raises:
        InputError: on all ranks alike: rank 0 cannot read the file, or other arguments contradict what is in it.
    """
    told: dict[str, Any] | None = None
    if training.rank == 0:
        try:
            kept = Kept.read(path)
            if kept is None:
                raise InputError("there is no such file; train with policy='auto' or tuner= first, which keep one")
            check_policy(policy, kept.config)
            check_space(space, tuner=tuner, policy=policy, config=kept.config)
        except AutoByteError as error:
            told = {"error": f"config='{path}': {error}"}
        else:
            told = {"config": kept.config.to_json()}
            log.info("using %s from %s, which stays as it is", kept.config.full_label, path)
            if difference := fingerprint(training, policy=kept.job.policy).differs(kept.job):
                log.warning("%s was found for another job: %s", path, difference)
    told = training.control.share(told)
    assert told is not None, "rank 0 says one or the other"
    if "error" in told:
        raise InputError(told["error"])
    training.replan(training.job, training.fitting(Config.from_json(told["config"])), None)


def made_in_time(name: str, make: Callable[[], Tuner], *, patience_s: float = PATIENCE_S) -> Tuner:
    """Make a tuner in a thread of its own, which may hang.

    Args:
        name: of the tuner, for messages.
        make: makes it.
        patience_s: how long it may take (s).

    Raises:
        InputError: it cannot be made, or not in time.
        Exception: what it needs cannot be made.
    """
    made: queue.SimpleQueue[Tuner | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            made.put(make())
        except Exception as error:  # raised below, for the caller
            made.put(error)

    threading.Thread(target=run, name="autobyte tuner", daemon=True).start()
    try:
        tuner = made.get(timeout=patience_s)
    except queue.Empty:
        raise InputError(f"tuner '{name}' was not made within {patience_s:g} s") from None
    if isinstance(tuner, Exception):
        raise tuner
    return tuner


def fingerprint(training: TunedTraining, *, policy: str) -> Fingerprint:
    """What is trained, and on what."""
    job = training.job
    return Fingerprint(
        job.model.name,
        training.fingerprint,
        training.size,
        training.engine,
        job.wire_dtype or "as they are",
        policy,
    )
