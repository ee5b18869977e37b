"""What happens in training is said on rank 0, unless the script says what it wants to hear."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from ranks import Ranks
from tuned import beside_ddp

from autobyte.exchange.log import Fallback, show_log


def test_every_event_of_a_search_is_a_line_on_rank_0() -> None:
    ranks = Ranks(_tuned, 2)
    written = []
    try:
        for process in ranks.processes:
            process.join(60)
        written = [ranks.written(rank) for rank in range(2)]
        ranks.results()
    finally:
        ranks.kill()
    lines = [line.partition("] ")[2] for line in written[0].splitlines() if line.startswith("[autobyte ")]
    events = ["search begun: script starts from", "step", "step", "step", "search ended after 4 windows"]
    kept = [next(event for event in events if line.startswith(event)) for line in lines if not _aside(line)]
    assert kept[0] == events[0] and kept[1:4] == ["step"] * 3 and events[-1] in kept, written[0]
    assert re.search(r"step \d+: bytescheduler ⟨.+⟩ replaces bytescheduler ⟨.+⟩", written[0])
    assert "[autobyte" not in written[1]


def _aside(line: str) -> bool:
    return line.startswith(("too few blocks", "script", "bytescheduler"))


def _tuned(rank: int) -> None:
    optimizer, _ = beside_ddp(rank, tuner="script", budget=4, keep=None)
    optimizer.close()


@contextmanager
def bare() -> Iterator[logging.Logger]:
    """The logger in a script that has not set up logging."""
    log, root = logging.getLogger("autobyte"), logging.getLogger()
    before = root.handlers[:]
    root.handlers.clear()  # pytest's
    try:
        yield log
    finally:
        root.handlers[:] = before
        log.handlers.clear()
        log.setLevel(logging.NOTSET)


def test_it_is_shown_once_and_a_level_of_the_scripts_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with bare() as log:
        for _ in range(2):  # two models
            show_log()
        log.info("hello")
        log.setLevel(logging.WARNING)
        log.info("quiet")
    assert re.fullmatch(r"\[autobyte \d\d:\d\d:\d\d\] hello\n", capsys.readouterr().err)


def test_a_script_that_sets_up_logging_is_left_alone() -> None:
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    with bare() as log:
        show_log()
        logging.getLogger().addHandler(handler)  # later than the wrapper was made
        log.warning("once")
        assert seen == ["once"] and not any(isinstance(each, Fallback) for each in log.handlers)
        log.info("below the script's level")
        show_log()
        assert seen == ["once"] and not log.handlers


def test_a_level_set_before_is_kept() -> None:
    with bare() as log:
        log.setLevel(logging.ERROR)
        show_log()
        assert (log.level, log.handlers) == (logging.ERROR, [])
