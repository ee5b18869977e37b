"""What chooses while training goes on, a tuner or an audition, and what becomes of its result."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autobyte.config import Config, Space
from autobyte.errors import AutoByteError, FileError, InputError
from autobyte.job import Job
from autobyte.scheduler.policies import POLICIES
from autobyte.torch.arguments import AUTO
from autobyte.torch.exchange.training import Training
from autobyte.torch.tuning.audition import Audition
from autobyte.torch.tuning.kept import Fingerprint, Kept, Trial
from autobyte.tuners.base import TUNERS
from autobyte.tuning import Tuning, make_tuner

ONCE = 30  # windows of who searches once
KEEP = Path("autobyte.toml")  # where nothing else is said
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

    Raises:
        InputError: no such tuner.
    """

    def __init__(
        self,
        training: Training,
        *,
        tuner: str | None,
        space: Space | None,
        budget: int | None,
        seed: int,
        keep: Path | str | None,
    ) -> None:
        if tuner is not None and TUNERS[tuner].one_shot and budget is None:
            budget = ONCE
        self._training = training
        self.tuner = tuner or AUTO
        self.audition = Audition() if tuner is None else None
        self.budget = budget
        self._space = space
        self._seed = seed
        self._path = Path(keep) if keep is not None else None
        self._kept: Kept | None = None
        self._job = fingerprint(training, policy=AUTO if tuner is None else training.config.policy)

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
                config = self._kept.config.to_json()
                if self.audition is not None:
                    self.audition.settle(self._kept.config, self._kept.step_s)
        config = training.control.share(config)
        if config is not None:
            training.replan(training.job, Config.from_json(config), None)

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
        space = replace(self._space or POLICIES[running.policy]().space(job), default=running)
        tuner = make_tuner(self.tuner, space, job=job, seed=self._seed, budget=self.budget)
        return Tuning(tuner, space, patience_s=PATIENCE_S)

    def finish(self, job: Job, config: Config, trials: Mapping[Config, Trial], *, finished: bool = True) -> None:
        """On rank 0: keep what was found.

        Args:
            job: as measured.
            config: what was found.
            trials: all that were measured for it, in that order.
            finished: whether the search has ended; if not, it goes on from there next time.
        """
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
        )
        try:
            kept.write(self._path)
        except AutoByteError as error:
            log.warning("%s", error)
        else:
            log.info("kept %s in %s", config.label, self._path)
        if finished and self.audition is None and trials[config].step_s > 1.05 * first.step_s:
            log.warning(
                "%s was slower than what training began with, %.4g ms and %.4g ms a step: the job or its links have "
                "changed meanwhile, or they are noisy; delete %s to tune again",
                config.label, 1e3 * trials[config].step_s, 1e3 * first.step_s, self._path,
            )  # fmt: skip

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
        log.info("using %s from %s; %s", kept.config.label, self._path, what)
        return kept

    def _rate(self, job: Job) -> float:
        return float(min(job.cluster.up_bytes_per_s))


def fingerprint(training: Training, *, policy: str) -> Fingerprint:
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
