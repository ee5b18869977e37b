"""Which faults there are, on which engines, beside which ways to choose a config; and what would be right."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

ENGINES = {
    "allreduce": "all-reduce",
    "beside": "servers beside the workers",
    "separate": "servers of their own",
}
WAYS = ("fixed", "twin", "auto")
SIZE = 3  # processes; with `separate`, the last one serves
TIMEOUT_S = 8.0  # of AutoByte's waits
BOUND_S = 18.0  # from the fault to the end: a timeout, the roll call, and a busy machine

#: What those say who wait for a lost rank: themselves, the step, and the lost one.
LOST = (
    r"^(?!.*all ranks are alive).*rank {rank}, step \d+: "
    r".*(rank {victim} is gone|no word from ranks? (\d+, )*{victim}\b)"
)
#: The same of a rank that is alive, and has ended its training.
ENDED = (
    r"rank {rank}, step \d+: "
    r".*(rank {victim} (is gone|has ended its training)|no word from ranks? (\d+, )*{victim}\b)"
)
#: Rank 0 has the store: once it is gone, nobody can be asked.
MUTE = r"rank {rank}, (step \d+: )?.*(the store at which the ranks met does not answer|rank 0 is gone|rank 0\b)"


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong in one process of a training.

    Args:
        name: of the fault, short.
        text: what happens, for the table.
        words: what survivors say; None if training goes on and ends as DDP's would.
        victim: the rank that has it; None is none.
        engines, ways: on which it can happen.
        early: it happens before training begins.
    """

    name: str
    text: str
    words: str | None = LOST
    victim: int = 1
    engines: tuple[str, ...] = tuple(ENGINES)
    ways: tuple[str, ...] = WAYS
    early: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether training ends as it would without the fault."""
        return self.words is None

    def is_said(self, line: str, rank: int) -> bool:
        """Whether a survivor says what it should."""
        return self.words is None or bool(re.search(self.words.format(rank=rank, victim=self.victim), line))


TUNED = ("twin", "auto")

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("killed-forward", "SIGKILL in a forward pass"),
        Fault("killed-backward", "SIGKILL in a backward pass"),
        Fault("killed-between", "SIGKILL between two steps"),
        Fault("killed-last", "SIGKILL in the last step"),
        Fault("terminated", "SIGTERM between two steps"),
        Fault("stopped", "SIGSTOP between two steps; SIGCONT when the others have ended"),
        Fault("raises-forward", "an exception in a forward pass", ENDED),
        Fault("raises-backward", "an exception in a backward pass", ENDED),
        Fault("raises-step", "an exception in the optimizer's step", ENDED),
        Fault("leaves", "a rank leaves the loop early, and closes", ENDED),
        Fault("late", "a rank wraps its optimizer 4 s after the others", None, early=True),
        Fault("never", "a rank ends before it wraps its optimizer", early=True),
        Fault("other-model", "a rank has another model", r"ranks \[1\] have a model unlike rank 0's", early=True),
        Fault("other-config", "a rank has another config", r"ranks \[1\] have .* unlike rank 0's", early=True),
        Fault("cut", "a rank's connections are shut down", r"rank {rank}, step \d+: "),
        Fault("server-killed", "SIGKILL of a server", victim=2, engines=("separate",)),
        Fault("server-stopped", "SIGSTOP of a server; SIGCONT later", victim=2, engines=("separate",)),
        Fault("store-meeting", "SIGKILL of rank 0, which has the store, while ranks meet", MUTE, 0, early=True),
        Fault("store-training", "SIGKILL of rank 0, which has the store, between two steps", MUTE, 0),
        Fault("nan", "NaN gradients on one rank", None),
        Fault("slow", "a step of one rank takes 3 s longer", None),
        Fault("full-disk", "no space for the kept file", None, 0, ways=TUNED),
        Fault("damaged-kept", "the kept file is damaged", None, 0, ways=TUNED, early=True),
        Fault("child-lives-on", "SIGKILL of a rank whose forked child lives on"),
        Fault("restart", "SIGKILL of a rank under torchrun, which starts all ranks anew", None),
    )
}


@dataclass(frozen=True)
class Row:
    """A fault in one training."""

    fault: str
    engine: str
    way: str

    @property
    def workers(self) -> int:
        """How many ranks train."""
        return SIZE - (self.engine == "separate")

    @property
    def name(self) -> str:
        """The row's name, for files and arguments."""
        return f"{self.fault}.{self.engine}.{self.way}"


def all_rows() -> Iterator[Row]:
    """The whole matrix."""
    for fault in FAULTS.values():
        for engine in fault.engines:
            for way in fault.ways:
                yield Row(fault.name, engine, way)


#: A column of the matrix that takes seconds: a lost rank on each engine, and one that is lost while the twin tunes.
QUICK = (
    Row("killed-backward", "allreduce", "fixed"),
    Row("killed-forward", "allreduce", "twin"),
    Row("stopped", "beside", "fixed"),
    Row("server-killed", "separate", "fixed"),
    Row("nan", "separate", "auto"),
)
