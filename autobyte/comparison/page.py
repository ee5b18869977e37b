"""A comparison as one self-contained page, for a browser without a network, a phone, or a printer."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from autobyte.comparison import repeat
from autobyte.comparison.outcome import read_outcome
from autobyte.comparison.panels.cost import draw_cost
from autobyte.comparison.panels.landscape import draw_landscape, landscape_height
from autobyte.comparison.panels.look import Outcome, svg
from autobyte.comparison.panels.regret import apart, draw_regret, regret_height
from autobyte.comparison.panels.timeline import draw_timeline
from autobyte.comparison.table import COLUMNS, references, table
from autobyte.comparison.template import fill
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
    shown = outcome | {"tuners": sorted(outcome["tuners"], key=lambda t: (-t["samples_per_s"], t["search_cost_s"]))}
    return fill(
        "comparison/page.html",
        {
            "title": title(outcome),
            "outcome": outcome,
            "summary": _summary(outcome),
            "references": references(outcome),
            "heads": [head for head, _, _ in COLUMNS.values()],
            "rows": table(shown),
            "apart": apart(outcome),
            "pictures": _pictures(shown, trials),
            "repeat": None if run is None else _repeat(outcome, run, trials),
            "count": count,
            "window": WINDOW,
        },
    )


def _summary(outcome: Outcome) -> list[str]:
    """What was compared, in a few words each."""
    job = outcome["job"]
    extras = [f"{job['accumulation']} backward passes per step"] if job["accumulation"] > 1 else []
    extras += [f"gradients sent as {job['wire_dtype']}"] if job.get("wire_dtype") else []
    extras += [f"slowdown {job['slowdown']}"] if job.get("slowdown", 1.0) != 1.0 else []
    return [title(outcome), f"{job['parameters']:,} parameters", f"batch {job['batch_size']} per worker", *extras]


def _pictures(outcome: Outcome, trials: Sequence[StoredTrial]) -> dict[str, Markup | None]:
    return {
        "regret": svg(
            lambda axes: draw_regret(axes[0], outcome),
            regret_height(outcome),
            top=0.25,
            name="regret",
            what="regret over iterations",
        ),
        "landscape": svg(
            lambda axes: draw_landscape(axes[0], outcome),
            landscape_height(outcome),
            top=0.25,
            name="land",
            what="speed of every config",
        ),
        "cost": svg(
            lambda axes: draw_cost(axes[0], outcome),
            0.17 * len(outcome["tuners"]) + 0.1,
            name="cost",
            what="search cost of every tuner",
        ),
        "timeline": _timeline(outcome, trials),
    }


def _timeline(outcome: Outcome, trials: Sequence[StoredTrial]) -> Markup | None:
    """Of each tuner's first run, as far as its trials were kept."""
    names = [tuner["name"] for tuner in outcome["tuners"]]
    runs = {name: [t.measurement for t in trials if (t.tuner, t.seed) == (name, 0)] for name in names}
    runs = {name: run for name, run in runs.items() if run}
    if not runs:
        return None
    heights = [0.34] * len(runs)
    return svg(lambda axes: draw_timeline(axes, outcome, runs), *heights, gap=0.12, name="time", what="step times")


def _repeat(outcome: Outcome, run: dict[str, Any], trials: Sequence[StoredTrial]) -> dict[str, Any]:
    """The command, what no option sets, the versions of the packages that ran, and all settings."""
    packages = dict.fromkeys(", ".join(f"{name} {v}" for name, v in trial.versions.items()) for trial in trials)
    return {
        "command": repeat.command(run, tuners=[tuner["name"] for tuner in outcome["tuners"]], seeds=outcome["seeds"]),
        "beyond": repeat.beyond(run),
        "packages": list(packages),
        "settings": json.dumps(run, indent=1, sort_keys=True),
    }


def _check_same(database: Path, run: dict[str, Any], outcome: Outcome) -> None:
    """The trials must be those that were judged."""
    known = run.get("job", {}) | {"scenario": run.get("scenario", {}).get("name")}
    if [known, run.get("budget")] != [outcome["job"], outcome["budget"]]:
        raise FileError(f"{database} holds another run than compare.json; run `autobyte compare` again")


def save_page(path: Path, page: str) -> None:
    """Replace a page of ours, whole or not at all.

    Raises:
        FileError: it is somebody else's, or cannot be written.
    """
    try:
        if path.exists() and OURS not in path.read_bytes()[:1000]:
            raise FileError(f"{path} was not written by `autobyte report`; move it away first")
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None
    with draft_of(path) as draft:
        draft.write_text(page, encoding="utf-8")
