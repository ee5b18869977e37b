"""`autobyte explain`: where the time of a traced job goes, and what to try."""

from pathlib import Path
from typing import Annotated

import typer

from autobyte.cli.options import JsonOption


def explain(
    *,
    trace: Annotated[
        Path, typer.Argument(help="file from `optimizer.trace(…)` in training, or from `autobyte simulate --trace`")
    ],
    json: JsonOption = False,
) -> None:
    """Say where the time of a step goes, and what to try.

    A step is compute (forward, backward, updates), exposed communication (the rank waits for averages), and idle time
    (the rest: loading data, say). The sentences are about the rank that computes longest, because the others wait for
    it, too. --json has the figures of every rank. To make a trace, call optimizer.trace(steps=20, path="trace.json")
    on all ranks, between two steps; https://ui.perfetto.dev opens it.

    Example: autobyte explain trace.json
    """
    from autobyte.cli.console import print_json, print_note, warn
    from autobyte.explain import explain as sentences
    from autobyte.explain import read_trace

    job = read_trace(trace)
    if json:
        print_json(job.to_json())
        return
    for sentence in sentences(job):
        print_note(sentence)
    missing = job.about.get("missing_ranks")
    if missing:
        warn(f"ranks {missing} are not in this trace: {job.about.get('missing_because', 'unknown')}")
