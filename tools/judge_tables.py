"""The tables of docs/tuners.md, from what `judge_tuners.py` keeps: medians, and how far chance may move them."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

COUNTS = 0.05  # the part of the oracle's speed that the best constant must lack
SURE = 2.0  # standard errors of a difference that are not noise
NOTICEABLE = 0.01  # of the oracle's speed: BO that lacks less leaves no gap to share
RESAMPLED = 2000
P90 = "90th percentile"
BO, AS_PUBLISHED = "bayesian", "bayesian-published"  # tuned once before the start
PAPER = {"bandwidth-10-3": "6.4 … 23 %", "jobs-joining": "8.8 … 19.2 %"}  # claimed gains over BO tuned once

ORDER = ["default", "p3", "grid", "random", AS_PUBLISHED, BO, f"{BO}@drift", "optuna", "optuna-gp", "descent"]
ORDER += ["metanet-published", "metanet", "twin"]  # in tables; others follow

NAMES = {"seed": str, "repeat": str, "recovery": str}  # columns of text, although it looks like numbers

Rows = pd.DataFrame
Sample = pd.Series  # values, each under what it shares with others: a seed, or a recorded cell


def read(path: Path) -> Rows:
    """Rows of a file; none where there is no file."""
    if not path.exists():
        return pd.DataFrame()
    return pd.read_csv(path, dtype=NAMES).fillna({"recovery": ""})


def append(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to a file; the first ones make it, with their names as its head, which others must have, too."""
    table, fresh = pd.DataFrame(rows), not path.exists()
    if not fresh:
        head = pd.read_csv(path, nrows=0).columns
        assert set(table) == set(head), f"{path} holds other columns: remove it, or make its rows with other code"
        table = table[list(head)]
    table.to_csv(path, mode="a", header=fresh, index=False, float_format="%.6g", lineterminator="\n")


def write(page: Path, data: Path) -> None:
    """Put what was judged into the page."""
    fill(page, tables(data))


def fill(page: Path, tables_of: Mapping[str, str]) -> None:
    """Put every table between its marks in the page."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables_of.items():
        marks = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert marks.search(text), f"{page} has no place for the table {name}"
        text = marks.sub(lambda match, table=table: match[1] + "\n" + table + "\n" + match[2], text)  # type: ignore[misc]
    page.write_text(text, encoding="utf-8")


def tables(data: Path) -> dict[str, str]:
    """Every table by its name, in Markdown; those without data are left out."""
    static, fresh, replay = (read(data / f"judge_{name}.csv") for name in ("static", "fresh", "replay"))
    changing, before = read(data / "judge_scenarios.csv"), read(data / "judge_before.csv")
    decisions, live = read(data / "judge_decisions.measured.csv"), read(data / "judge_live.csv")
    drawn: list[tuple[str, Callable[[Rows], str], Rows]] = [
        ("static", _static, static),
        ("kinds", _kinds, static),
        ("safety", _safety, static),
        ("fresh", _static, fresh),
        ("safety-fresh", _safety, fresh),
        ("replay", _static, replay),
        ("scenarios", _scenarios, changing),
        ("recovery", _recovery, changing),
        ("decisions", _decisions, decisions),
        ("live", _live, live),
    ]
    if not changing.empty and not before.empty:
        once = changing[changing["tuner"].isin([BO, AS_PUBLISHED])]
        drawn.append(("before", _scenarios, pd.concat([once, before], ignore_index=True)))
    return {name: table(rows) for name, table, rows in drawn if not rows.empty}


def interval(sample: Sample) -> tuple[float, float, float]:
    """The median, and a 95 % interval of it by the percentile bootstrap over what values share, not over values."""
    by_value = pd.DataFrame({"value": sample.to_numpy(), "shared": sample.index}).sort_values(["value", "shared"])
    values = by_value["value"].to_numpy()
    names, index = np.unique(by_value["shared"].to_numpy(dtype=str), return_inverse=True)
    drawn = np.random.default_rng(5).multinomial(len(names), np.full(len(names), 1 / len(names)), size=RESAMPLED)
    upto = drawn[:, index].cumsum(axis=1)  # so many of the drawn values are at most this one
    half = upto[:, -1:] / 2
    medians = (values[(upto >= half).argmax(axis=1)] + values[(upto > half).argmax(axis=1)]) / 2
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(np.median(values)), float(low), float(high)


def _percent(sample: Sample, digits: int = 1) -> str:
    if sample.empty:
        return "–"
    middle, low, high = (100 * value for value in interval(sample))
    return f"{middle:.{digits}f} ({low:.{digits}f} … {high:.{digits}f}) %".replace("-", "−")


def _number(sample: Sample) -> str:
    middle, low, high = interval(sample)
    return f"{middle:.0f} ({low:.0f} … {high:.0f})".replace("-", "−")


def _judged(rows: Rows) -> Rows:
    """Rows under what they share with others, and the best step of their world, by the grid and by every tuner (s).

    They share the seed of their effects and of the tuner, or the recorded cell.
    """
    best_s = rows.groupby(["kind", "seed"])["best_s"].transform("min")
    return rows.assign(least_s=best_s).set_index(rows["kind" if "recordings" in rows else "seed"].to_numpy())


def _regrets(rows: Rows, which: str) -> Sample:
    return 1 - rows["least_s"] / rows[which]


def _closed(rows: Rows, which: str) -> Sample:
    """Shares of the gap from the best constant to the oracle, of worlds in which it counts."""
    wide = rows[_regrets(rows, "constant_s") >= COUNTS]
    return 1 - _regrets(wide, which) / _regrets(wide, "constant_s")


def _cost(rows: Rows) -> Sample:
    """Search cost in steps of the best config; of windows with 10 steps, 30 each."""
    return rows["spent_s"] / rows["least_s"] - 300


def _p90(sample: Sample) -> str:
    return f"{100 * sample.quantile(0.9):.1f} %"


def _cpu(rows: Rows) -> str:
    """The tuner's CPU time as a part of the run."""
    return f"{100 * (rows['cpu_s'] / rows['spent_s']).median():.2f} %"


def _by(rows: Rows, column: str) -> dict[str, Rows]:
    """Rows by what stands in a column; tuners in the order of tables, all else as it came."""
    grouped = dict(list(rows.groupby(column, sort=False)))
    if column == "tuner":
        return dict(sorted(grouped.items(), key=lambda it: ORDER.index(it[0]) if it[0] in ORDER else len(ORDER)))
    return grouped


def markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _static(rows: Rows) -> str:
    body = []
    for tuner, runs in _by(_judged(rows), "tuner").items():
        early, last = (_regrets(runs, which) for which in ("early_s", "last_s"))
        closed = [_closed(runs, which) for which in ("early_s", "last_s")]
        body.append(
            [
                tuner,
                f"{len(closed[0])} of {len(runs)}",
                *(_percent(shares, 0) for shares in closed),
                _percent(early),
                _p90(early),
                _percent(last),
                _p90(last),
                _number(_cost(runs)),
                _cpu(runs),
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
    judged, body = _judged(rows), []
    kinds = judged["kind"].unique()
    for tuner, runs in _by(judged, "tuner").items():
        for what in ("gap closed", "regret"):
            cells = []
            for kind in kinds:
                of_kind = runs[runs["kind"] == kind]
                if what == "regret":
                    regrets = _regrets(of_kind, "early_s")
                    cells.append(_percent(regrets) + ("" if regrets.empty else f"; p90 {_p90(regrets)}"))
                else:
                    cells.append(_percent(_closed(of_kind, "early_s"), 0))
            body.append([tuner, what, *cells])
    return markdown(["tuner", "figure after 3 decisions", *kinds], body)


def _safety(rows: Rows) -> str:
    body = []
    for tuner, runs in _by(_judged(rows), "tuner").items():
        slower = runs["last_s"] / runs["default_s"] - 1
        noise = (SURE * np.sqrt(2) * runs["noise"]).clip(lower=NOTICEABLE)
        body.append(
            [
                tuner,
                f"{(slower > noise).sum()} of {len(runs)}",
                f"{(slower > 0.01).sum()}",
                f"{(slower > 0.03).sum()}",
                f"{100 * slower.max():.1f} %".replace("-", "−"),
                _percent(1 / (1 + slower) - 1),
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


class _Worlds:
    """Worlds that change, a row for each scenario and seed: speeds by tuner, and what they lie between (samples/s).

    Args:
        rows: of all tuners; `oracle_there` is the speed of an oracle that decides where the tuner did. Each world has
            the best oracle that was found for it, and `oracle_there` is raised by as much.
    """

    def __init__(self, rows: Rows) -> None:
        world = ["scenario", "seed"]
        oracle = rows.groupby(world)["oracle"].transform("max")
        rows = rows.assign(oracle_there=rows["oracle_there"] * oracle / rows["oracle"], oracle=oracle)
        shared = rows.groupby(world, sort=False)[["constant", "oracle"]].first()
        wide = rows.pivot(index=world, columns="tuner", values=["samples_per_s", "oracle_there"]).loc[shared.index]
        self.speed, self._there = wide["samples_per_s"], wide["oracle_there"]
        self._oracle = shared["oracle"]
        self.gap = 1 - shared["constant"] / self._oracle
        self.wide = self.gap >= COUNTS

    def lack(self, once: str = BO) -> pd.Series:
        """What a tuner that searched once lacks of the oracle's speed; NaN where it did not run."""
        return 1 - self.speed[once] / self._oracle

    def counting(self, once: str = BO) -> pd.Series:
        """Whether there is a gap to share: the best constant lacks 5 % of the oracle, and BO at least 1 %."""
        return self.wide & (self.lack(once) >= NOTICEABLE)

    def shares(self, chosen: pd.Series, tuner: str, once: str = BO) -> Sample:
        """Of the gap from BO to the oracle that decides where the tuner did."""
        below = self.speed[once][chosen]
        return _by_seed((self.speed[tuner] - below) / (self._there[tuner] - below))

    def pooled(self, tuner: str, once: str) -> str:
        """What a tuner gains on BO in all, of what the oracle that decides where it did gains, in parts of its speed.

        Of all worlds in which the best constant lacks 5 %.
        """
        below, there = self.speed[once][self.wide], self._there[tuner]
        gained, possible = ((self.speed[tuner] - below) / there).dropna(), (1 - below / there).dropna()
        return "–" if gained.empty else f"{100 * gained.sum() / possible.sum():.0f} %".replace("-", "−")


def _by_seed(values: pd.Series) -> Sample:
    """Values that there are, under their seeds."""
    return values.dropna().droplevel("scenario")


def _scenarios(rows: Rows) -> str:
    """Share of the gap from BO, tuned once before the start, to the oracle; of all worlds, from either BO.

    Where BO came within 1 % of the oracle, or beat it, a share says nothing; the pooled one has these worlds, too.
    """
    tuners, worlds, body = [tuner for tuner in _by(rows, "tuner") if tuner != BO], _Worlds(rows), []
    counting, gain = worlds.counting(), worlds.speed["twin"] / worlds.speed[BO] - 1
    for name in rows["scenario"].unique():
        of_name = worlds.gap.index.get_level_values("scenario") == name
        body.append(
            [
                name,
                _percent(_by_seed(worlds.gap[of_name])),
                f"{counting[of_name].sum()} of {of_name.sum()}",
                _percent(_by_seed(worlds.lack()[of_name])),
                *(_percent(worlds.shares(counting & of_name, tuner), 0) for tuner in tuners),
                _percent(_by_seed(gain[of_name])),
                PAPER.get(name, ""),
            ]
        )
    for once in (BO, AS_PUBLISHED):
        counting = worlds.counting(once)
        total = [_percent(worlds.shares(counting, tuner, once), 0) if tuner != once else "–" for tuner in tuners]
        head = f"median of all worlds that count, from `{once}`"
        body.append([head, "", f"{counting.sum()} of {len(counting)}", "", *total, "", ""])
        total = [worlds.pooled(tuner, once) if tuner != once else "–" for tuner in tuners]
        pooled = worlds.wide & worlds.speed[once].notna()
        head = f"pooled, from `{once}`, wherever the best constant is 5 % below the oracle"
        body.append([head, "", f"{pooled.sum()} of {len(pooled)}", "", *total, "", ""])
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


def _recovery(rows: Rows) -> str:
    """Iterations from a change until the regret is at most 3 % again, and what all of it cost."""
    body = []
    for tuner, runs in _by(rows.set_index(rows["seed"].to_numpy()), "tuner").items():
        waits = runs["recovery"].str.split().explode().dropna().astype(float)
        before = runs["before_cost_s"] / runs["best_s"]
        body.append(
            [
                tuner,
                f"{len(waits)}",
                "–" if waits.empty else _number(waits),
                "–" if waits.empty else f"{waits.quantile(0.9):.0f}",
                _number(runs["switches"]),
                _number(before) if before.any() else "–",
                _cpu(runs),
            ]
        )
    recovery = ["changes that hurt", "iterations to recover, median", f"iterations to recover, {P90}"]
    head = ["tuner", *recovery, "switches", "cost of the search before, steps", "tuner's CPU time, of the run"]
    return markdown(head, body)


def _decisions(rows: Rows) -> str:
    body = []
    for way, runs in _by(_judged(rows), "tuner").items():
        times_ms = 1e3 * runs["decision_s"]
        middle, low, high = interval(times_ms)
        regrets = _regrets(runs, "early_s")
        p90, decision = f"{times_ms.quantile(0.9):.0f} ms", f"{middle:.1f} ({low:.1f} … {high:.1f}) ms"
        body.append([way, f"{len(runs)}", decision, p90, _percent(regrets), _p90(regrets)])
    regret = "regret after 3 decisions"
    heads = ["CPU time of a decision, median", f"the same, {P90}", f"{regret}, median", f"{regret}, {P90}"]
    return markdown(["candidates of the twin", "worlds", *heads], body)


def _live(rows: Rows) -> str:
    """Speed over all windows and over the last four, beside the default's; what was in force at the end."""
    body = []
    for (links, engine), launch in rows.groupby(["links", "engine"], sort=False):
        by_tuner = _by(launch, "tuner")
        default = by_tuner["default"]
        for tuner, run in by_tuner.items():
            late, late_default = (part[part["window"] > run["window"].max() - 4]["mean_s"] for part in (run, default))
            pairs = run[["partition_bytes", "credit_bytes"]]
            changes = (pairs.diff().iloc[1:] != 0).any(axis=1).sum()
            partition, credit = pairs.iloc[-1] / 2**20
            unsound = run["unsound_links"].iloc[0]
            whole, end = default["mean_s"].mean() / run["mean_s"].mean(), late_default.mean() / late.mean()
            body.append(
                [
                    links + (f" ({unsound} of 8 unsound)" if unsound else ""),
                    engine,
                    tuner,
                    f"{whole:.2f}x",
                    f"{end:.2f}x",
                    f"{1e3 * late.median():.0f} ms",
                    str(changes),
                    f"⟨{partition:.2g}, {credit:.2g}⟩ MiB",
                ]
            )
    heads = [
        "speed over the default, 160 steps",
        "speed over the default, last 40 steps",
        "step in the last 40, median",
    ]
    heads += ["switches", "config at the end"]
    return markdown(["links", "engine", "tuner", *heads], body)
