"""The tables of docs/tuners.md, from what `judge_tuners.py` keeps: medians, and how far chance may move them."""

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

COUNTS = 0.05  # the part of the oracle's speed that the best constant must lack
SURE = 2.0  # standard errors of a difference that are not noise
NOTICEABLE = 0.01  # of the oracle's speed: BO that lacks less leaves no gap to share
RESAMPLED = 2000
P90 = "90th percentile"
BO, AS_PUBLISHED = "bayesian", "bayesian-published"  # tuned once before the start
PAPER = {"bandwidth-10-3": "6.4 … 23 %", "jobs-joining": "8.8 … 19.2 %"}  # claimed gains over BO tuned once

ORDER = ["default", "p3", "grid", "random", AS_PUBLISHED, BO, f"{BO}@drift", "optuna", "optuna-gp", "descent"]
ORDER += ["metanet-published", "metanet", "twin"]  # in tables; others follow

Row = dict[str, str]
Rows = list[Row]
Sample = list[tuple[float, str]]  # values, each with what it shares with others: a seed, or a recorded cell


def read(path: Path) -> Rows:
    """Rows of a file; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def append(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to a file; the first ones make it, with their names as its head, which others must have, too."""
    fresh, head = not path.exists(), list(rows[0])
    if not fresh:
        with path.open(newline="", encoding="utf-8") as file:
            head = next(csv.reader(file))
        assert set(rows[0]) == set(head), f"{path} holds other columns: remove it, or make its rows with other code"
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, head, lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def write(page: Path, data: Path) -> None:
    """Put what was judged into the page."""
    fill(page, tables(data))


def fill(page: Path, made: Mapping[str, str]) -> None:
    """Put every table between its marks in the page."""
    text = page.read_text(encoding="utf-8")
    for name, table in made.items():
        marks = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert marks.search(text), f"{page} has no place for the table {name}"
        text = marks.sub(lambda found, table=table: found[1] + "\n" + table + "\n" + found[2], text)  # type: ignore[misc]
    page.write_text(text, encoding="utf-8")


def tables(data: Path) -> dict[str, str]:
    """Every table by its name, in Markdown; those without data are left out."""
    static, replay = read(data / "judge_static.csv"), read(data / "judge_replay.csv")
    changing, decisions = read(data / "judge_scenarios.csv"), read(data / "judge_decisions.measured.csv")
    made: dict[str, Callable[[], str]] = {}
    if static:
        made |= {
            "static": lambda: _static(static),
            "kinds": lambda: _kinds(static),
            "safety": lambda: _safety(static),
        }
    if fresh := read(data / "judge_fresh.csv"):
        made |= {"fresh": lambda: _static(fresh), "safety-fresh": lambda: _safety(fresh)}
    if replay:
        made |= {"replay": lambda: _static(replay)}
    if changing and (before := read(data / "judge_before.csv")):
        once = [row for row in read(data / "judge_scenarios.csv") if row["tuner"] in (BO, AS_PUBLISHED)]
        made |= {"before": lambda: _scenarios([*once, *before])}
    if changing:
        made |= {"scenarios": lambda: _scenarios(changing), "recovery": lambda: _recovery(changing)}
    if decisions:
        made |= {"decisions": lambda: _decisions(decisions)}
    if live := read(data / "judge_live.csv"):
        made |= {"live": lambda: _live(live)}
    return {name: make() for name, make in made.items()}


def interval(sample: Sample) -> tuple[float, float, float]:
    """The median, and a 95 % interval of it by the percentile bootstrap over what values share, not over values."""
    sample = sorted(sample)
    values, groups = np.array([value for value, _ in sample]), [group for _, group in sample]
    names, index = np.unique(groups, return_inverse=True)
    drawn = np.random.default_rng(5).multinomial(len(names), np.full(len(names), 1 / len(names)), size=RESAMPLED)
    upto = drawn[:, index].cumsum(axis=1)  # so many of the drawn values are at most this one
    half = upto[:, -1:] / 2
    medians = (values[(upto >= half).argmax(axis=1)] + values[(upto > half).argmax(axis=1)]) / 2
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(np.median(values)), float(low), float(high)


def _percent(sample: Sample, digits: int = 1) -> str:
    if not sample:
        return "–"
    middle, low, high = (100 * value for value in interval(sample))
    return f"{middle:.{digits}f} ({low:.{digits}f} … {high:.{digits}f}) %".replace("-", "−")


def _number(sample: Sample) -> str:
    middle, low, high = interval(sample)
    return f"{middle:.0f} ({low:.0f} … {high:.0f})".replace("-", "−")


def _shared(row: Row) -> str:
    """What a row has in common with others: the seed of its effects and of the tuner, or the recorded cell."""
    return row["kind"] if "recordings" in row else row["seed"]


def _world(row: Row) -> tuple[str, str]:
    return row["kind"], row["seed"]


def _bests(rows: Rows) -> dict[tuple[str, str], float]:
    """The best step of every world, over the grid and all configs that any tuner tried (s)."""
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        seconds = float(row["best_s"])
        best[_world(row)] = min(best.get(_world(row), seconds), seconds)
    return best


def _regret(row: Row, which: str, best: dict[tuple[str, str], float]) -> float:
    return 1 - best[_world(row)] / float(row[which])


def _regrets(rows: Rows, which: str, best: dict[tuple[str, str], float]) -> Sample:
    return [(_regret(row, which, best), _shared(row)) for row in rows]


def _closed(rows: Rows, which: str, best: dict[tuple[str, str], float]) -> Sample:
    """Shares of the gap from the best constant to the oracle, of worlds in which it counts."""
    gaps = [(row, _regret(row, "constant_s", best)) for row in rows]
    return [(1 - _regret(row, which, best) / gap, _shared(row)) for row, gap in gaps if gap >= COUNTS]


def _cost(rows: Rows, best: dict[tuple[str, str], float]) -> Sample:
    """Search cost in steps of the best config; of windows with 10 steps, 30 each."""
    return [(float(row["spent_s"]) / best[_world(row)] - 300, _shared(row)) for row in rows]


def _p90(sample: Sample) -> str:
    return f"{100 * np.quantile([value for value, _ in sample], 0.9):.1f} %"


def _cpu(rows: Rows) -> str:
    """The tuner's CPU time as a part of the run."""
    return f"{100 * np.median([float(row['cpu_s']) / float(row['spent_s']) for row in rows]):.2f} %"


def _by(rows: Rows, column: str) -> dict[str, Rows]:
    """Rows by what stands in a column; tuners in the order of tables, all else as it came."""
    grouped: dict[str, Rows] = {}
    for row in rows:
        grouped.setdefault(row[column], []).append(row)
    if column == "tuner":
        return dict(sorted(grouped.items(), key=lambda it: ORDER.index(it[0]) if it[0] in ORDER else len(ORDER)))
    return grouped


def markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _static(rows: Rows) -> str:
    best, body = _bests(rows), []
    for tuner, mine in _by(rows, "tuner").items():
        early, last = (_regrets(mine, which, best) for which in ("early_s", "last_s"))
        closed = [_closed(mine, which, best) for which in ("early_s", "last_s")]
        body.append(
            [
                tuner,
                f"{len(closed[0])} of {len(mine)}",
                *(_percent(shares, 0) for shares in closed),
                _percent(early),
                _p90(early),
                _percent(last),
                _p90(last),
                _number(_cost(mine, best)),
                _cpu(mine),
            ]
        )
    closed_heads = ["gap closed after 3 decisions", "gap closed at the end"]
    regret_heads = [
        f"regret {when}, {which}" for when in ("after 3 decisions", "at the end") for which in ("median", P90)
    ]
    head = [
        "tuner",
        "worlds with a gap",
        *closed_heads,
        *regret_heads,
        "search cost, steps",
        "tuner's CPU time, of the run",
    ]
    return markdown(head, body)


def _kinds(rows: Rows) -> str:
    """After three decisions, for each kind of world."""
    best, body = _bests(rows), []
    kinds = list(_by(rows, "kind"))
    for tuner, mine in _by(rows, "tuner").items():
        for what in ("gap closed", "regret"):
            cells = []
            for kind in kinds:
                here = [row for row in mine if row["kind"] == kind]
                if what == "regret":
                    regrets = _regrets(here, "early_s", best)
                    cells.append(_percent(regrets) + (f"; p90 {_p90(regrets)}" if regrets else ""))
                else:
                    cells.append(_percent(_closed(here, "early_s", best), 0))
            body.append([tuner, what, *cells])
    return markdown(["tuner", "figure after 3 decisions", *kinds], body)


def _safety(rows: Rows) -> str:
    body = []
    for tuner, mine in _by(rows, "tuner").items():
        slower = np.array([float(row["last_s"]) / float(row["default_s"]) - 1 for row in mine])
        noise = np.array([SURE * np.sqrt(2) * float(row["noise"]) for row in mine])
        beyond = int((slower > np.maximum(noise, NOTICEABLE)).sum())
        faster = 1 / (1 + slower) - 1
        body.append(
            [
                tuner,
                f"{beyond} of {len(mine)}",
                f"{int((slower > 0.01).sum())}",
                f"{int((slower > 0.03).sum())}",
                f"{100 * slower.max():.1f} %".replace("-", "−"),
                _percent(list(zip(faster.tolist(), map(_shared, mine), strict=True))),
            ]
        )
    bounds = [
        "worlds slower beyond noise",
        "worlds slower by over 1 %",
        "worlds slower by over 3 %",
        "slower at worst",
    ]
    head = ["tuner", *bounds, "faster than the default, median"]
    return markdown(head, body)


def _scenarios(rows: Rows) -> str:
    """Share of the gap from BO, tuned once before the start, to the oracle; of all worlds, from either BO.

    Where BO came within 1 % of the oracle, or beat it, a share says nothing; the pooled one has these worlds, too.
    """
    tuners = [tuner for tuner in _by(rows, "tuner") if tuner != BO]
    body, everywhere = [], list[dict[str, Row]]()
    for name, here in _by(rows, "scenario").items():
        worlds = _worlds(here)
        everywhere += worlds.values()
        counting = [world for world in worlds.values() if _counts(world)]
        both = [world for world in worlds.values() if {"twin", BO} <= world.keys()]
        gain = [(_speed(world["twin"]) / _speed(world[BO]) - 1, _seed(world)) for world in both]
        body.append(
            [
                name,
                _percent([(_gap(world), _seed(world)) for world in worlds.values()]),
                f"{len(counting)} of {len(worlds)}",
                _percent([(_lack(world), _seed(world)) for world in worlds.values() if BO in world]),
                *(_percent(_shares(counting, tuner), 0) for tuner in tuners),
                _percent(gain),
                PAPER.get(name, ""),
            ]
        )
    for once in (BO, AS_PUBLISHED):
        counting = [world for world in everywhere if _counts(world, once)]
        total = [_percent(_shares(counting, tuner, once), 0) if tuner != once else "–" for tuner in tuners]
        head = f"median of all worlds that count, from `{once}`"
        body.append([head, "", f"{len(counting)} of {len(everywhere)}", "", *total, "", ""])
        wide = [world for world in everywhere if _gap(world) >= COUNTS and once in world]
        total = [_pooled(wide, tuner, once) if tuner != once else "–" for tuner in tuners]
        head = f"pooled, from `{once}`, wherever the best constant is 5 % below the oracle"
        body.append([head, "", f"{len(wide)} of {len(everywhere)}", "", *total, "", ""])
    gains = ["gain of `twin` over `bayesian`", "gain claimed by the AutoByte paper"]
    shares = [f"`{tuner}`" for tuner in tuners]
    head = [
        "scenario",
        "best constant below the oracle",
        "worlds that count",
        "`bayesian` below the oracle",
        *shares,
        *gains,
    ]
    return markdown(head, body)


def _worlds(rows: Rows) -> dict[str, dict[str, Row]]:
    """Rows by seed and tuner, each with the best oracle that was found for the seed.

    `oracle_there`, that of the tuner's own decision points, is raised by as much.
    """
    worlds: dict[str, dict[str, Row]] = {}
    for row in rows:
        worlds.setdefault(row["seed"], {})[row["tuner"]] = row
    for world in worlds.values():
        oracle = max(float(row["oracle"]) for row in world.values())
        for row in world.values():
            row["oracle_there"] = str(float(row["oracle_there"]) * oracle / float(row["oracle"]))
            row["oracle"] = str(oracle)
    return worlds


def _speed(row: Row) -> float:
    return float(row["samples_per_s"])


def _gap(world: dict[str, Row]) -> float:
    row = next(iter(world.values()))
    return 1 - float(row["constant"]) / float(row["oracle"])


def _counts(world: dict[str, Row], once: str = BO) -> bool:
    """Whether there is a gap to share: the best constant lacks 5 % of the oracle, and BO at least 1 %."""
    return _gap(world) >= COUNTS and once in world and _lack(world, once) >= NOTICEABLE


def _lack(world: dict[str, Row], once: str = BO) -> float:
    return 1 - _speed(world[once]) / float(world[once]["oracle"])


def _seed(world: dict[str, Row]) -> str:
    return next(iter(world.values()))["seed"]


def _shares(worlds: Sequence[dict[str, Row]], tuner: str, once: str = BO) -> Sample:
    """Of the gap from BO to the oracle that decides where the tuner did, in worlds that count."""
    ends = [(_speed(world[once]), world[tuner]) for world in worlds if tuner in world]
    return [((_speed(row) - below) / (float(row["oracle_there"]) - below), row["seed"]) for below, row in ends]


def _pooled(worlds: Sequence[dict[str, Row]], tuner: str, once: str) -> str:
    """What a tuner gains on BO in all, of what the oracle that decides where it did gains, in parts of its speed."""
    ends = [(_speed(world[once]), world[tuner]) for world in worlds if tuner in world]
    gained = sum((_speed(row) - below) / float(row["oracle_there"]) for below, row in ends)
    possible = sum(1 - below / float(row["oracle_there"]) for below, row in ends)
    return f"{100 * gained / possible:.0f} %".replace("-", "−") if ends else "–"


def _recovery(rows: Rows) -> str:
    """Iterations from a change until the regret is at most 3 % again, and what all of it cost."""
    body = []
    for tuner, mine in _by(rows, "tuner").items():
        waits = [(float(each), row["seed"]) for row in mine for each in row["recovery"].split()]
        before = [(float(row["before_cost_s"]) / float(row["best_s"]), row["seed"]) for row in mine]
        body.append(
            [
                tuner,
                f"{len(waits)}",
                _number(waits) if waits else "–",
                f"{np.quantile([wait for wait, _ in waits], 0.9):.0f}" if waits else "–",
                _number([(float(row["switches"]), row["seed"]) for row in mine]),
                _number(before) if any(cost for cost, _ in before) else "–",
                _cpu(mine),
            ]
        )
    recovery = ["changes that hurt", "iterations to recover, median", f"iterations to recover, {P90}"]
    head = ["tuner", *recovery, "switches", "cost of the search before, steps", "tuner's CPU time, of the run"]
    return markdown(head, body)


def _decisions(rows: Rows) -> str:
    best, body = _bests(rows), []
    for way, mine in _by(rows, "tuner").items():
        times = [1e3 * float(row["decision_s"]) for row in mine]
        middle, low, high = interval(list(zip(times, map(_shared, mine), strict=True)))
        regrets = _regrets(mine, "early_s", best)
        p90, decision = f"{np.quantile(times, 0.9):.0f} ms", f"{middle:.1f} ({low:.1f} … {high:.1f}) ms"
        body.append([way, f"{len(mine)}", decision, p90, _percent(regrets), _p90(regrets)])
    regret = "regret after 3 decisions"
    heads = ["CPU time of a decision, median", f"the same, {P90}", f"{regret}, median", f"{regret}, {P90}"]
    return markdown(["candidates of the twin", "worlds", *heads], body)


def _live(rows: Rows) -> str:
    """Speed over all windows and over the last four, beside the default's; what was in force at the end."""
    body = []
    for links, engine in dict.fromkeys((row["links"], row["engine"]) for row in rows):
        here = [row for row in rows if (row["links"], row["engine"]) == (links, engine)]
        plain = _by(here, "tuner")["default"]
        for tuner, mine in _by(here, "tuner").items():
            last = max(int(row["window"]) for row in mine)
            late = [[float(row["mean_s"]) for row in run if int(row["window"]) > last - 4] for run in (plain, mine)]
            whole = [[float(row["mean_s"]) for row in run] for run in (plain, mine)]
            pairs = [(row["partition_bytes"], row["credit_bytes"]) for row in mine]
            changes = sum(a != b for a, b in pairwise(pairs))
            partition, credit = (int(size) / 2**20 for size in pairs[-1])
            unsound = f" ({mine[0]['unsound_links']} of 8 unsound)" if int(mine[0]["unsound_links"]) else ""
            speeds = [f"{np.mean(one) / np.mean(other):.2f}x" for one, other in (whole, late)]
            end = f"⟨{partition:.2g}, {credit:.2g}⟩ MiB"
            median = f"{1e3 * np.median(late[1]):.0f} ms"
            body.append([links + unsound, engine, tuner, *speeds, median, str(changes), end])
    heads = [
        "speed over the default, 160 steps",
        "speed over the default, last 40 steps",
        "step in the last 40, median",
    ]
    heads += ["switches", "config at the end"]
    return markdown(["links", "engine", "tuner", *heads], body)
