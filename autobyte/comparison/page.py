"""A comparison as one self-contained page, for a browser without a network, a phone, or a printer."""

import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from autobyte.comparison import repeat
from autobyte.comparison.outcome import read_outcome
from autobyte.comparison.panels.cost import draw_cost
from autobyte.comparison.panels.landscape import draw_landscape
from autobyte.comparison.panels.look import Outcome, svg
from autobyte.comparison.panels.regret import draw_regret
from autobyte.comparison.panels.timeline import draw_timeline
from autobyte.comparison.table import note, references, table
from autobyte.comparison.title import count, title
from autobyte.drafts import draft_of
from autobyte.errors import FileError
from autobyte.results import DATABASE, Results, StoredTrial
from autobyte.tuning import WINDOW

NAME = "report.html"
OURS = b'<meta name="generator" content="autobyte report">'


def write_page(folder: Path) -> Path:
    """Write report.html beside the comparison that it shows; an earlier one is replaced.

    Args:
        folder: what `autobyte compare --out` wrote. Without its results.sqlite the page has no time line.

    Returns:
        where the page is.

    Raises:
        FileError: there is no comparison, it is damaged or of another schema, or report.html is somebody else's.
    """
    outcome = read_outcome(folder / "compare.json")
    database = folder / DATABASE
    if database.exists():
        with Results.read(database) as results:
            run, trials = results.run, list(results.trials())
        _check_same(database, run, outcome)
        page = render(outcome, run=run, trials=trials)
    else:
        page = render(outcome)
    save_page(folder / NAME, page)
    return folder / NAME


def render(outcome: Outcome, *, run: dict[str, Any] | None = None, trials: Sequence[StoredTrial] = ()) -> str:
    """Make the page.

    Args:
        outcome: what `verdict` returned.
        run: what `Contest.to_json` returned, if known.
        trials: those that were kept.
    """
    skeleton = files("autobyte.comparison").joinpath("page.html").read_text(encoding="utf-8")
    return Template(skeleton).substitute(
        title=escape(title(outcome)),
        what=escape(outcome["what"]),
        model=escape(f"{len(outcome['tuners'])} tuners on {outcome['job']['model']}"),
        summary=escape(_summary(outcome)),
        references=references(outcome),
        table=table(outcome),
        note=note(outcome),
        panels=_panels(outcome),
        timeline=_timeline(outcome, trials),
        repeat=_repeat(outcome, run, trials),
    )


def _summary(outcome: Outcome) -> str:
    job = outcome["job"]
    extras = [f"{job['accumulation']} backward passes per step"] if job["accumulation"] > 1 else []
    extras += [f"gradients sent as {job['wire_dtype']}"] if job.get("wire_dtype") else []
    extras += [f"slowdown {job['slowdown']}"] if job.get("slowdown", 1.0) != 1.0 else []
    what = [title(outcome), f"{job['parameters']:,} parameters", f"batch {job['batch_size']} per worker", *extras]
    runs = f"Each tuner had {count(outcome['seeds'], 'run')} of {count(outcome['budget'], 'window')}"
    return f"{' · '.join(what)}. {runs} of {WINDOW} iterations, or as many half ones as that is, in the same world."


def _panels(outcome: Outcome) -> str:
    when = " before anything changes" if outcome["changes"] else ""
    regret = svg(
        lambda axes: draw_regret(axes[0], outcome), 1.7, top=0.25, name="regret", what="regret over iterations"
    )
    land = svg(
        lambda axes: draw_landscape(axes[0], outcome), 1.7, top=0.25, name="land", what="speed of every config"
    )
    cost = svg(
        lambda axes: draw_cost(axes[0], outcome),
        0.17 * len(outcome["tuners"]) + 0.1,
        name="cost",
        what="search cost of every tuner",
    )
    before = " Diamonds: what a search before the scenario cost besides." if outcome["changes"] else ""
    return (
        _figure(
            regret,
            "<b>Regret</b> of the config in force after each decision, the median of all runs. Dashed: 3&nbsp;%, "
            "which counts as found. Linear up to there, logarithmic above.",
        )
        + _figure(
            land,
            f"<b>The landscape</b>{when}: the speed of every config of the grid, without noise, and the config that "
            "each tuner leaves in force.",
        )
        + _figure(
            cost,
            "<b>Search cost</b>: time lost against the optimum over all iterations, the median of all runs and a "
            f"line from the 10th to the 90th percentile.{before}",
        )
    )


def _timeline(outcome: Outcome, trials: Sequence[StoredTrial]) -> str:
    names = [tuner["name"] for tuner in outcome["tuners"]]
    runs = {name: [t.measurement for t in trials if (t.tuner, t.seed) == (name, 0)] for name in names}
    runs = {name: run for name, run in runs.items() if run}
    if not runs:
        return "<p>The trials are not here.</p>"
    heights = [0.34] * len(runs)
    picture = svg(lambda axes: draw_timeline(axes, outcome, runs), *heights, gap=0.12, name="time", what="step times")
    dashed = "Thin lines: the cluster changes." if outcome["changes"] else "Dashed: the optimum."
    return _figure(
        picture,
        "<b>Step time</b> of each tuner’s first run: the mean of every window, all on one logarithmic scale. Ticks "
        f"above: the config changed. {dashed}",
    )


def _figure(picture: str, caption: str) -> str:
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>\n"


def _repeat(outcome: Outcome, run: dict[str, Any] | None, trials: Sequence[StoredTrial]) -> str:
    if run is None:
        return "<p>The settings are in results.sqlite, which is not here.</p>"
    tuners = [tuner["name"] for tuner in outcome["tuners"]]
    command = repeat.command(run, tuners=tuners, seeds=outcome["seeds"])
    strange = repeat.beyond(run)
    warning = f"<p>No option sets these: {escape(', '.join(strange))}. Repeat it from Python.</p>" if strange else ""
    packages = dict.fromkeys(", ".join(f"{name} {v}" for name, v in trial.versions.items()) for trial in trials)
    settings = json.dumps(run, indent=1, sort_keys=True)
    return (
        f"<pre>{escape(command)}</pre>{warning}<p>It ran on {escape('; and on '.join(packages))}. Everything but the "
        "tuner’s CPU time comes out the same.</p><details><summary>All settings</summary>"
        f"<pre>{escape(settings)}</pre></details>"
    )


def _check_same(database: Path, run: dict[str, Any], outcome: Outcome) -> None:
    """The trials must be those that were judged."""
    known = run.get("job", {}) | {"scenario": run.get("scenario", {}).get("name")}
    if [known, run.get("budget")] != [outcome["job"], outcome["budget"]]:
        raise FileError(f"{database} holds another run than compare.json; run `autobyte compare` again")


def shell(heading: str, body: str) -> str:
    """Make a page of this look around what it shows.

    Args:
        heading: also the page's title.
        body: HTML.
    """
    skeleton = files("autobyte.comparison").joinpath("page.html").read_text(encoding="utf-8")
    look = re.search(r"<style>.*?</style>", skeleton, re.DOTALL)
    assert look is not None
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{OURS.decode()}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(heading)}</title>\n{look[0]}\n</head>\n<body>\n<header><h1>{escape(heading)}</h1></header>\n"
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def save_page(path: Path, page: str) -> None:
    """Replace a page of ours, whole or not at all.

    Raises:
        FileError: it is somebody else's, or cannot be written.
    """
    try:
        if path.exists() and OURS not in path.read_bytes()[:1000]:
            raise FileError(f"{path} was not written by `autobyte report`; move it away first")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None
    with draft_of(path) as draft:
        draft.write_text(page, encoding="utf-8")
