"""What tuning tried, won and spent: `ab.report()`."""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from autobyte.bound import bound_s
from autobyte.config import Config
from autobyte.exchange.tuning.advice import Adviser
from autobyte.exchange.tuning.callback import State
from autobyte.exchange.tuning.kept import Trial, by_engine, fastest_by_engine, yardstick
from autobyte.exchange.tuning.subject import TunedTraining
from autobyte.scheduler.policies import label_of
from autobyte.tuning import WINDOW
from autobyte.units import format_percent


@dataclass(frozen=True)
class Report:
    """One wrapped model, as rank 0 knows it; `print` it, or take `to_json()`.

    Args:
        model: name of its class.
        workers: ranks.
        engine: that gradients travel by where a config names no other.
        wire_dtype: what gradients travel as, None as they are.
        config: in force.
        default: what training began with.
        tuner: its name, None without.
        trials: what windows showed, by config.
        bound_s: an estimate of the least step, by what was measured (s), None before the first window. Layer times
            that were measured while gradients travelled can make it too long.
        link_bytes_per_s: payload rate that blocks saw, None likewise.
        cpu_s: spent on choosing and planning (s).
        failure: what went wrong in the tuner, if anything did.
        state: of the search, as `WindowReport` has it.
        least_s: the shortest median step of all windows (s), None likewise.
        exposed_s: part of a step of the latest window in which the model of the rank that computes longest stood
            still for averages (s), None likewise.
        overlap: share of communication in that window for which it did not, None likewise.
        step_s: the median step of that window on the slowest rank (s), None likewise.
        unmeasured: why this rank has no windows and never will; empty if it has, or may have.
        over: whether training has ended.
    """

    model: str
    workers: int
    engine: str
    wire_dtype: str | None
    config: Config
    default: Config
    tuner: str | None
    trials: dict[Config, Trial]
    bound_s: float | None
    link_bytes_per_s: float | None
    cpu_s: float
    failure: str
    state: State = "settled"
    least_s: float | None = None
    exposed_s: float | None = None
    overlap: float | None = None
    step_s: float | None = None
    unmeasured: str = ""
    over: bool = False

    @property
    def best(self) -> Config:
        """The fastest config so far while a search goes on, afterwards the one in force."""
        trials = self.trials
        if self._searching:
            return min(trials, key=lambda config: trials[config].step_s)
        return self.config

    @property
    def reference(self) -> Config | None:
        """What the best is compared with: the default, DDP's fastest buckets, or what was measured first.

        It is the first of these that was measured; None before anything was.
        """
        if not self.trials:
            return None
        return self.default if self.default in self.trials else yardstick(self.trials)

    @property
    def gain(self) -> float | None:
        """The reference's step over that of the best; None before both were measured."""
        if self.reference is None or self.best not in self.trials:
            return None
        return self.trials[self.reference].step_s / self.trials[self.best].step_s

    @property
    def search_cost_s(self) -> float:
        """Σ over all windows of their time beyond the best config's (s)."""
        best = min((trial.step_s for trial in self.trials.values()), default=0.0)
        return sum(WINDOW * trial.windows * (trial.step_s - best) for trial in self.trials.values())

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return {
            "model": self.model,
            "workers": self.workers,
            "engine": self.engine,
            "wire_dtype": self.wire_dtype,
            "config": self.config.to_json(),
            "tuner": self.tuner,
            "trials": [
                {"config": config.to_json(), "windows": trial.windows, "step_s": trial.step_s}
                for config, trial in self.trials.items()
            ],
            "state": self.state,
            "over": self.over,
            "unmeasured": self.unmeasured,
            "best": self.best.to_json(),
            "reference": self.reference.to_json() if self.reference is not None else None,
            "gain": self.gain,
            "search_cost_s": self.search_cost_s,
            "tuner_cpu_s": self.cpu_s,
            "bound_s": self.bound_s,
            "link_bytes_per_s": self.link_bytes_per_s,
            "step_s": self.step_s,
            "exposed_s": self.exposed_s,
            "overlap": self.overlap,
            "engines_s": fastest_by_engine(self.trials, own=self.engine),
            "failure": self.failure,
        }

    def __str__(self) -> str:
        searching = ""
        if self._searching:
            searching = f"{'search unfinished' if self.over else 'searching'}, best so far "
        by = self.best.engine or self.engine
        lines = [f"{self.model} on {self.workers} ranks, {by}: {searching}{self._label(self.best)}"]
        if self.link_bytes_per_s is not None:
            lines.append(f"links as blocks saw them {self.link_bytes_per_s * 8e-9:.3g} Gbit/s{self._bound()}")
        if self.exposed_s is not None:
            lines.append(self._exposed(self.exposed_s))
        if self.unmeasured:
            lines.append(self.unmeasured)
        elif self.tuner is None:
            lines.append('nothing searches: pass policy="auto" or tuner="twin" if it should')
        elif not self.trials or self.state == "compiling":
            lines.append(f"{self.tuner} {self._beginning()}")
        if self.trials:
            windows = sum(trial.windows for trial in self.trials.values())
            lines.append(
                f"{self.tuner}: {windows:g} windows of {len(self.trials)} configs, "
                f"{self.search_cost_s:.2f} s of training and {self.cpu_s:.2f} s of CPU spent{self._gain()}"
            )
        engines = fastest_by_engine(self.trials, own=self.engine)
        if len(engines) > 1:
            lines.append(by_engine(engines))
        if self.failure:
            lines.append(f"failed: {self.failure}")
        return "\n".join([*lines, *([self._table()] if self.trials else [])])

    @property
    def _searching(self) -> bool:
        return self.state in ("searching", "compiling") and bool(self.trials)

    def _beginning(self) -> str:
        """What a search does before it has measured a config, now or when training ended."""
        if self.state == "settled":
            return "uses what an earlier training found"
        doing = {
            "starting": "waiting for its first window",
            "thinking": "thinking about its first window",
            "compiling": "compiling what it needs",
            "searching": "measuring its first config",
        }[self.state]
        if self.over:
            return f"was still {doing} when training ended"
        return f"is {doing}, beside training" + (": up to a minute, once" if self.state == "compiling" else "")

    def _exposed(self, exposed_s: float) -> str:
        """Exposed communication in words."""
        step = "a step" if self.step_s is None else f"a step of {self.step_s * 1e3:.1f} ms"
        hidden = "" if self.overlap is None else f"; {format_percent(self.overlap)} of communication is hidden"
        return f"in {step}, the model waits {exposed_s * 1e3:.1f} ms for averages{hidden}"

    def _bound(self) -> str:
        """The bound in words; nothing where a step was measured below it, which shows that the estimate is wrong."""
        measured = [trial.step_s for trial in self.trials.values()]
        measured += [] if self.least_s is None else [self.least_s]
        if self.bound_s is None or self.bound_s > min(measured, default=self.bound_s):
            return ""
        return f"; by an estimate, no step is below {self.bound_s * 1e3:.1f} ms"

    def _gain(self) -> str:
        """The gain in words, and over what."""
        if self.gain is None or self.reference in (None, self.best):
            return ""
        assert self.reference is not None
        if self.reference == self.default:
            return f", {self.gain:.3f}x the default"
        what = "DDP's best" if self.reference.policy == "ddp" else "the first measured"
        return f", {self.gain:.3f}x {what}, {self._label(self.reference)}"

    def _label(self, config: Config) -> str:
        """A config, and its policy where there are several."""
        several = len({config.policy for config in (self.config, *self.trials)}) > 1
        return f"{config.policy} {label_of(config)}".rstrip() if several else config.label

    def _table(self) -> str:
        table = Table(box=None, pad_edge=False)
        for heading in ("config", "windows of ten steps", "step"):
            table.add_column(heading, justify="left" if heading == "config" else "right")
        for config, trial in sorted(self.trials.items(), key=lambda item: item[1].step_s):
            now = "on trial" if self._searching and not self.over else "in force"
            marked = ((now, self.config), ("default", self.default))
            marks = [name for name, each in marked if config == each]
            label = f"{self._label(config)}  {', '.join(marks)}".rstrip()
            table.add_row(label, f"{trial.windows:g}", f"{trial.step_s * 1e3:.1f} ms")
        out = io.StringIO()
        Console(file=out, width=100).print(table)
        return out.getvalue().rstrip()


def report_on(
    training: TunedTraining, adviser: Adviser | None, *, tuner: str | None, default: Config, untuned: str = ""
) -> Report:
    """What rank 0 knows; other ranks know the config only.

    Args:
        training: it is about.
        adviser: of rank 0, once it has one.
        tuner: its name, None without.
        default: what training began with.
        untuned: why nothing is measured on any rank; empty if it is.
    """
    job, latest = None, adviser.latest if adviser is not None else None
    elsewhere = bool(training.rank) and tuner is not None and not untuned
    state: State = "unknown" if elsewhere else "fixed" if tuner is None or untuned else "starting"
    if adviser is not None and latest is not None:
        job = adviser.measured_job(latest)
    return Report(
        model=training.job.model.name,
        workers=training.size,
        engine=training.engine,
        wire_dtype=training.job.wire_dtype,
        config=training.config,
        default=default,
        tuner=tuner,
        trials=dict(adviser.trials) if adviser is not None else {},
        bound_s=bound_s(job) if job is not None else None,
        link_bytes_per_s=min(job.cluster.up_bytes_per_s) if job is not None else None,
        cpu_s=adviser.cpu_s if adviser is not None else 0.0,
        failure=adviser.failure if adviser is not None else "",
        state=adviser.state if adviser is not None else state,
        least_s=adviser.least_s if adviser is not None else None,
        unmeasured=f"this is rank {training.rank}: rank 0 has what {tuner} measured" if elsewhere else untuned,
        exposed_s=None if latest is None else latest.slowest_exposed_s,
        overlap=None if latest is None else latest.overlap,
        step_s=None if latest is None else float(np.median(latest.step_s)),
    )
