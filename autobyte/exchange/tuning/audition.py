"""`policy="auto"`: what simulation finds fastest is measured beside DDP's best bucket; the fastest stays."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, median

from autobyte.config import Config
from autobyte.exchange.tuning.kept import Trial
from autobyte.exchange.tuning.losses import LossBudget
from autobyte.job import Job
from autobyte.scheduler.policies.ddp import DEFAULT_BUCKETS
from autobyte.simulator.choose import shortlist

CLOSE, FINALISTS, AGAIN = 1.05, 3, 2  # who was within 5 % of the fastest is heard twice more, three at most
LEAD = 1.02  # what is not that much faster than DDP's buckets may well be slower: few windows decide
CHANGED, SPREADS = 0.1, 3  # of the winner's step: a change is more than 10 %, and than 3 times the noise
HOLD = 5  # windows that a change lasts, at least; and twice as long as one that has passed
KNOWN = 8  # of the winner's windows say what its step usually takes; until then a change is more than 30 %
OTHER = 0.3
TRIAL = 10  # steps with DDP's buckets that a trial may lose: one that is twice as slow loses that many until it ends
THOUGHT_S = 2.0  # what finding candidates may cost beside training, on a machine that compiles the simulator first


class Audition:
    """Chooses policy and config from a few measured windows; nobody stays slower than with DDP's buckets.

    DDP's buckets are heard first: until others were, nobody is slower than with DDP. They stay where nothing else is
    2 % faster.

    Simulation alone would do on a calm machine; measuring costs one window for each candidate, and two more for each
    of those that are close: the fastest of many single windows is often the luckiest. Where gradients can travel by
    several engines, that is done on each of them, and the last look is at those that are close of all. What blocks
    cost there is not known before its first window, which has the fastest config so far.

    With a budget, a trial waits until the budget affords one that is twice as slow as DDP's buckets. Meanwhile the
    fastest config so far runs, at first DDP's buckets at their default size, which are what loss is measured by.

    Args:
        engines: as `Config.engine` names them.
        budget: of what trials may cost; None measures one after the other.
        buckets: what training begins with, if there is a budget.
    """

    def __init__(
        self,
        engines: Sequence[str] = ("",),
        *,
        budget: LossBudget | None = None,
        buckets: Config = DEFAULT_BUCKETS,
    ) -> None:
        self._engines = list(engines)
        self.budget = budget
        self.buckets = buckets
        self._waits = budget is not None  # for the budget
        self._reduced = False  # a window of the buckets has gone by PyTorch's reducer
        self._stays: Config | None = None  # the user's own choice
        self._unheard: list[str] = []  # engines on which nothing was measured in this round
        self._left: list[Config] | None = None  # to be measured; None: not begun
        self._seen: dict[Config, list[float]] = {}  # median step of every window (s)
        self._final = False  # those that are close are heard again
        self._hearing = False  # the latest answer is on trial
        self._opens = False  # it is the first on its engine
        self._usual: list[float] = []  # median steps of the winner's first windows after it has won (s)
        self._off: list[float] = []  # and of the latest ones, if all of them are slower, or all are faster (s)
        self._former_s: float | None = None  # what the winner's step took before this round (s)
        self._hold = HOLD

    @property
    def over(self) -> bool:
        """Whether all were heard that should be, and the latest answer is the fastest."""
        return self._stays is not None or (self._final and not self._hearing and not self._waits)

    @property
    def stays(self) -> bool:
        """Whether nobody is heard any more."""
        return self._stays is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for its budget; the fastest config so far runs."""
        return self._waits and self._stays is None

    @property
    def looks(self) -> bool:
        """Whether a window is wanted that shows layers' times, with which a round begins."""
        return self._left is None and self._stays is None and not self.waits

    @property
    def opens(self) -> bool:
        """Whether the latest answer is the first on its engine: candidates there are chosen from its window."""
        return self._opens

    @property
    def left(self) -> int | None:
        """How many windows are still to be measured; None before it has begun."""
        return None if self._left is None else len(self._left)

    @property
    def trials(self) -> dict[Config, Trial]:
        """Who was heard in this round, in that order; steps are means of windows' medians."""
        return {config: Trial(len(heard), self._mean_s(config)) for config, heard in self._seen.items()}

    def settle(self, config: Config, step_s: float) -> None:
        """Hear nobody: an earlier audition chose this one, whose step took so long then (s)."""
        self._left, self._seen, self._final, self._waits = [], {config: [step_s]}, True, False

    def stay(self, config: Config) -> None:
        """Hear nobody from now on: the user has chosen this one, or a loop that others do not suit."""
        self._stays = config

    def choose(self, job: Callable[[], Job], config: Config, step_s: float | None, *, fresh: bool = True) -> Config:
        """What runs next; a round begins with a window that is fresh.

        Args:
            job: makes it, as the latest window showed it; that takes its time, and it is seldom asked for.
            config: in force in that window.
            step_s: its median step (s); None if it was no measurement.
            fresh: whether the job is as that window showed it, and not as an earlier one did.
        """
        if self._stays is not None:
            return self._stays
        if self._lost(config, step_s):
            self._former_s = self.usual_s
            latest = {} if self.budget is None else {config: self._off[-self._hold :]}
            self._left, self._seen, self._final, self._usual, self._off = None, latest, False, [], []
            if self.budget is not None:
                self.budget.begin_again()
                self._waits = True
        if self.budget is not None:
            self._listen(self.budget, config, step_s, fresh=fresh)
        if self._left is None:
            self._waits = self._waits and not self._affords(seconds=THOUGHT_S)  # a round that was to begin does
            if self._waits or not fresh:
                return config if self.budget is None else self._leader(self._ranked())
            self._left = self._candidates(job(), config.engine)
            self._unheard = [engine for engine in self._engines if engine != config.engine]
        elif step_s is not None and self._hearing:
            self._seen.setdefault(config, []).append(step_s)
            if self._opens:
                self._left = self._candidates(job(), config.engine)
        ranked = self._ranked()
        if not self._waits:
            self._opens = not self._left and bool(self._unheard)
            if self._opens:
                self._left = [replace(min(ranked, key=self._mean_s), engine=self._unheard.pop(0))]
        if not self._left and not self._final:
            close = [each for each in ranked if self._mean_s(each) <= CLOSE * self._mean_s(ranked[0])]
            close = close[:FINALISTS]
            if self.budget is not None and self.buckets not in close:
                close.append(self.buckets)  # it may be long since they were heard, and that costs nothing
            self._final, self._left = True, AGAIN * close if len(close) > 1 else []
        self._waits = bool(self._left) and not self._affords(self._left[0])
        self._hearing = bool(self._left) and not self._waits
        return self._left.pop(0) if self._hearing else self._leader(ranked)

    def _affords(self, config: Config | None = None, *, seconds: float = 0.0) -> bool:
        """Whether a trial can begin, or one of a config; that of DDP's buckets loses nothing."""
        if self.budget is None or config == self.buckets:
            return True
        return self.budget.affords(steps=TRIAL, seconds=seconds)

    def _leader(self, ranked: list[Config]) -> Config:
        """What runs if nothing is on trial: with a budget that was overdrawn, DDP's buckets until it is not."""
        if self.budget is not None and not self.over:
            unknown = self.buckets not in self._seen
            if unknown or (self.budget.left_s < 0 and ranked[0] != self.buckets):
                return self.buckets
        return ranked[0]

    def _listen(self, budget: LossBudget, config: Config, step_s: float | None, *, fresh: bool) -> None:
        """Note a window that was no trial: of whoever runs while trials wait, the latest windows count."""
        hooked = config == self.buckets and fresh and self._reduced  # a step that waits for hooks of Python's
        self._reduced |= not fresh
        if step_s is not None and not (self.over or self._hearing or hooked):
            self._seen[config] = [*self._seen.get(config, []), step_s][-KNOWN:]
        if self.buckets in self._seen:
            budget.reference_s = median(self._seen[self.buckets])

    @property
    def usual_s(self) -> float | None:
        """What the winner's step takes as long as nothing changes (s); None as long as nobody has won."""
        if not self._final:
            return None
        return median(self._usual) if len(self._usual) == KNOWN else self._mean_s(self._ranked()[0])

    def _ranked(self) -> list[Config]:
        """Who was heard, the fastest first; before all others DDP's buckets, if nobody is faster by `LEAD`."""
        ranked = sorted(self._seen, key=self._mean_s)
        buckets = next((config for config in ranked if config.policy == "ddp"), None)
        if buckets is None or self._mean_s(buckets) > LEAD * self._mean_s(ranked[0]):
            return ranked
        return [buckets, *(config for config in ranked if config != buckets)]

    def _candidates(self, job: Job, engine: str) -> list[Config]:
        """What is heard on an engine, but for what was."""
        listed = [replace(config, engine=engine) for config in shortlist(job)]
        return [config for config in listed if config not in self._seen]

    def _lost(self, config: Config, step_s: float | None) -> bool:
        """Whether the winner is no longer what it was, for longer than noise lasts.

        A busy machine slows steps for some windows, too. So a change lasts at least twice as long as any that has
        passed. What a step took when it won, or in an earlier training, was noisy: as soon as they are known, the
        steps since then count.
        """
        usual_s = self.usual_s
        if not self.over or step_s is None or usual_s is None or config not in self._seen:
            return False
        if self._former_s is not None:
            self._hold *= 2 if abs(usual_s / self._former_s - 1) <= CHANGED else 1  # it has passed in this round
            self._former_s = None
        change, bound = step_s / usual_s - 1, self._bound()
        if abs(change) <= bound / 2 or (self._off and (self._off[-1] > usual_s) != (step_s > usual_s)):
            if self._off and abs(median(self._off) / usual_s - 1) > bound:
                self._hold = max(self._hold, 2 * len(self._off))
            self._off = []
        if abs(change) > bound / 2:
            self._off.append(step_s)
        if len(self._usual) < KNOWN and abs(change) <= bound:
            self._usual.append(step_s)
        return len(self._off) >= self._hold and abs(median(self._off[-self._hold :]) / usual_s - 1) > bound

    def _bound(self) -> float:
        """The relative change of a step that is more than noise, by the median of the windows that it must last."""
        if len(self._usual) < KNOWN:
            return OTHER
        middle = median(self._usual)
        spread = 1.4826 * median(abs(each - middle) for each in self._usual) / middle  # as of a normal distribution
        return max(CHANGED, SPREADS * 1.25 * spread / math.sqrt(self._hold))

    def _mean_s(self, config: Config) -> float:
        return fmean(self._seen[config])
