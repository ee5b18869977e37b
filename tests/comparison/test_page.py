"""The page: whole without a network, true to the numbers, harmless with hostile names, careful with files."""

import json
import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from contests import TOY, held, small_contest

from autobyte.cli.options import make_job, make_scenario, make_space
from autobyte.comparison import repeat
from autobyte.comparison.contest import Contest
from autobyte.comparison.oracle import lack
from autobyte.comparison.outcome import read_outcome
from autobyte.comparison.page import render, write_page
from autobyte.comparison.panels.look import new_figure
from autobyte.comparison.panels.timeline import draw_timeline, reconfigurations
from autobyte.comparison.table import three
from autobyte.config import Config
from autobyte.errors import FileError
from autobyte.job import Cluster, Job
from autobyte.results import Results
from autobyte.scenario import Change, Scenario
from autobyte.simulator.effects import Effects
from autobyte.trace import Measurement

HOSTILE = "<script>alert('$1')</script> & \"co\""
EMPTY = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a comparison of a model of a hostile name."""
    folder = tmp_path_factory.mktemp("page")
    job = Job(replace(TOY, name=HOSTILE), Cluster.uniform(4, 1.25e8))
    held(small_contest(job=job), folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "out")
    return tmp_path / "out"


class Reader(HTMLParser):
    """Reads a page, and fails where tags do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.rows and "table" in self.open:
            self.rows[-1][-1:] = [f"{''.join(self.rows[-1][-1:])} {data}".strip()]
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def values(self, *names: str) -> list[str]:
        return [value or "" for _, attrs in self.seen for name, value in attrs.items() if name in names]


def read(folder: Path) -> Reader:
    return Reader(write_page(folder).read_text(encoding="utf-8"))


# What it says


def test_every_tuner_has_its_numbers(folder: Path) -> None:
    outcome = read_outcome(folder / "compare.json")
    rows = {row[0]: row for row in read(folder).rows}
    for tuner in outcome["tuners"]:
        row = rows[tuner["name"]]
        assert row[1] == Config.from_json(tuner["config"]).label
        shown = [float(re.sub(r"[^0-9.−].*|,", "", cell).replace("−", "-")) for cell in row[2:]]
        expected = [
            tuner["samples_per_s"],
            tuner["speedup_over_fifo"],
            100 * tuner["gap_closed"],
            100 * tuner["regret"],
        ]
        expected += [tuner["iterations"], tuner["search_cost_s"], tuner["switches"], 1e3 * tuner["tuner_cpu_s"]]
        assert shown == [pytest.approx(value, rel=0.006, abs=0.06) for value in expected]
    best = f"{outcome['optimum']['samples_per_s']:,.1f}"
    assert rows["optimum"][2] == best
    assert (
        rows["best constant"][1]
        == Config(**{k: outcome["best_constant"][k] for k in ("partition_bytes", "credit_bytes")}).label
    )


def test_the_fastest_tuner_comes_first(folder: Path) -> None:
    outcome = read_outcome(folder / "compare.json")
    speeds = {tuner["name"]: tuner["samples_per_s"] for tuner in outcome["tuners"]}
    shown = [row[0] for row in read(folder).rows if row and row[0] in speeds]
    assert [speeds[name] for name in shown] == sorted(speeds.values(), reverse=True)
    assert len(shown) == len(speeds)


def test_a_spread_is_shown_where_runs_differ(folder: Path) -> None:
    outcome = read_outcome(folder / "compare.json")
    low, high = outcome["tuners"][3]["spread"]["search_cost_s"]
    rows = {row[0]: row for row in read(folder).rows}
    assert rows["random"][7].endswith(f"s {three(low)} to {three(high)}")
    assert rows["default"][7].endswith("s")


def test_no_gain_is_a_dash(folder: Path) -> None:
    outcome = read_outcome(folder / "compare.json")
    tuner = outcome["tuners"][0] | {"gap_closed": None}
    tuner["spread"].pop("gap_closed")
    rows = {row[0]: row for row in Reader(render(outcome | {"tuners": [tuner]})).rows}
    assert rows["default"][4] == "–"


def test_it_says_what_was_compared_and_what_the_words_mean(folder: Path) -> None:
    page = read(folder)
    for part in (
        "4 workers",
        "1 Gbit/s",
        "simulated",
        "the bound",
        "DDP at its best bucket",
        "FIFO, nothing overlapping",
    ):
        assert part in page.text
    for word in ("regret", "search cost", "gap closed", "best constant"):
        assert ("dt", {}) in page.seen
        assert word in page.text
    drawn = [attrs["aria-label"] for tag, attrs in page.seen if tag == "svg"]
    assert drawn == ["regret over iterations", "speed of every config", "search cost of every tuner", "step times"]


def test_a_scenario_is_told_apart(tmp_path: Path) -> None:
    slower = Scenario("slower", (Change(at=15, up=3.75e7, down=3.75e7),))
    outcome = held(small_contest(tuners=("grid",), scenario=slower), tmp_path)
    page = read(tmp_path)
    oracle = outcome["oracle"]
    speed = f"the oracle, over the whole run {oracle['samples_per_s']:,.1f} samples/s"
    assert f"{speed} {lack(oracle['gap'])}" in page.text
    assert "gap closed is from DDP to the bound, not to the oracle" in page.text
    assert "oracle" not in Reader(render(outcome | {"oracle": None})).text  # an earlier version's
    assert "oracle" not in Reader(render(outcome | {"changes": []})).text
    assert "of the whole run" in page.text
    assert "optimum at first" in page.text
    assert "--scenario SCENARIO.toml" in page.text


# How it is made


def test_it_needs_nothing_from_outside(folder: Path) -> None:
    text = write_page(folder).read_text(encoding="utf-8")
    assert not re.search(r"https?:|@import|<link|<script|<iframe", text)
    page = Reader(text)
    links = page.values("href", "src", "xlink:href", "action", "data", "srcset")
    assert links
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    inner = [link[1:] for link in links if link.startswith("#")] + re.findall(r"url\(#([^)]*)\)", text)
    assert set(inner) <= set(ids)


def test_a_hostile_name_is_only_a_name(folder: Path) -> None:
    page = read(folder)
    assert "script" not in {tag for tag, _ in page.seen}
    assert f"4 tuners on {HOSTILE}" in page.text
    outcome = read_outcome(folder / "compare.json")
    outcome["tuners"][0]["name"] = HOSTILE
    outcome["job"]["scenario"] = HOSTILE
    with Results.read(folder / "results.sqlite") as results:
        page = Reader(render(outcome, run=results.run, trials=list(results.trials())))
    assert "script" not in {tag for tag, _ in page.seen}
    assert HOSTILE in [row[0] for row in page.rows]


def test_two_pages_are_equal_to_the_byte(folder: Path) -> None:
    first = write_page(folder).read_bytes()
    assert write_page(folder).read_bytes() == first  # it also replaces its own


def test_it_works_without_the_trials(folder: Path) -> None:
    (folder / "results.sqlite").unlink()
    page = read(folder)
    assert len([tag for tag, _ in page.seen if tag == "svg"]) == 3
    assert "results.sqlite, which is not here" in page.text


def test_it_leaves_everything_else_as_it_was(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    write_page(folder)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert after.keys() - before.keys() == {"report.html"}
    assert all(after[name] == data for name, data in before.items())


# The time line


def window(number: int, config: Config, *step_s: float) -> Measurement:
    return Measurement(config, 10 * number, step_s, warmup=1)


def test_the_time_line_has_every_window_and_every_change(folder: Path) -> None:
    outcome = read_outcome(folder / "compare.json")
    one, other = Config(4096, 4096), Config(8192, 8192)
    run = [window(0, one, 9.0, *[1.0] * 9), window(1, other, *[2.0] * 10), window(2, other, *[4.0] * 10)]
    run += [window(3, one, *[1.0] * 10)]
    _, rows = new_figure(0.3, 0.3, top=0.1)
    draw_timeline(rows, outcome, {"grid": run, "random": run[:1]})
    values, ends, _ = rows[0].patches[0].get_data()
    assert (list(values), list(ends)) == ([1.0, 2.0, 4.0, 1.0], [0, 10, 20, 30, 40])
    assert reconfigurations(run) == [10, 30]
    marks = [segment[0][0] for ticks in rows[0].collections for segment in ticks.get_segments()]
    assert marks == [10, 30]
    assert [row.texts[0].get_text() for row in rows] == ["grid", "random"]
    best = outcome["optimum"]
    (dashed,) = rows[0].lines
    assert dashed.get_ydata()[0] == pytest.approx(8 * 4 / best["samples_per_s"])


def test_the_time_line_is_of_the_first_seed(folder: Path) -> None:
    with Results.read(folder / "results.sqlite") as results:
        trials = list(results.trials())
    assert len(trials) == 4 * 2 * 3  # tuners, seeds, windows
    assert {(t.tuner, t.seed, t.number) for t in trials} == {
        (name, seed, n) for name in ("default", "p3", "grid", "random") for seed in (0, 1) for n in range(3)
    }
    outcome = read_outcome(folder / "compare.json")
    first = render(outcome, trials=[trial for trial in trials if trial.seed == 0])
    assert render(outcome, trials=trials) == first
    others = render(outcome, trials=[trial for trial in trials if trial.seed == 1])
    assert 'aria-label="step times"' in first
    assert 'aria-label="step times"' not in others


# How to repeat it


def options(text: str) -> dict[str, str]:
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:2] == ["autobyte", "compare"]
    return dict(zip(words[2::2], words[3::2], strict=True))


def again(text: str, tmp_path: Path) -> Contest:
    """What the command line would make of a command."""
    given = options(text)
    job = make_job(
        given["--model"],
        arch=given["--arch"],
        workers=int(given["--workers"]),
        bandwidth=given["--bandwidth"],
        slowdown=given.get("--slowdown", "1"),
        latency=given.get("--latency", "30us"),
        overhead=given.get("--overhead", "500us,30us"),
        accumulation=int(given.get("--accumulation", 1)),
        wire_dtype=given.get("--wire-dtype", ""),
        gpus_per_node=int(given.get("--gpus-per-node", 1)),
    )
    knobs = [given["--knob"]] if "--knob" in given else None
    space = make_space(job, given.get("--policy", "bytescheduler"), knobs)
    tuners, budget, seeds = tuple(given["--tuners"].split(",")), int(given["--budget"]), int(given["--seeds"])
    effects = Effects(jitter=float(given.get("--jitter", 0)))
    drift = {"retune": given.get("--retune", "never"), "before": given.get("--before", "once")}
    return Contest(job, tuners, budget, seeds, space, make_scenario(None), effects, **drift)


CLUSTERS = [
    Cluster.uniform(8, 1.25e9),
    Cluster.uniform(4, float("inf"), architecture="ps", latency_s=1.7e-5, overhead_s=(0.0, 1 / 3)),
    Cluster(2, 0, (1.25e9, 123456789.1), (1.25e9, 123456789.1), (1.0, 2.5)),
    Cluster(16, gpus_per_node=8),
]


@pytest.mark.parametrize("cluster", CLUSTERS, ids=["plain", "odd", "unequal", "two levels"])
def test_the_command_makes_the_same_contest(cluster: Cluster, tmp_path: Path) -> None:
    job = make_job("alexnet", arch="ps", workers=1, bandwidth="1Gbit")
    contest = small_contest(job=replace(job, cluster=cluster))
    command = repeat.command(contest.to_json(), tuners=list(contest.tuners), seeds=contest.seeds)
    assert again(command, tmp_path) == contest
    assert repeat.beyond(contest.to_json()) == []


def test_the_command_has_every_option(tmp_path: Path) -> None:
    job = make_job("alexnet", arch="ps", workers=2, bandwidth="3Gbit", accumulation=2, wire_dtype="float16")
    space = make_space(job, "bytescheduler", ["fusion=1"])
    contest = Contest(job, ("random",), 7, 3, space, effects=Effects(jitter=0.09), retune="drift", before="all")
    command = repeat.command(contest.to_json(), tuners=["random"], seeds=3)
    assert again(command, tmp_path) == contest


def test_what_only_its_owner_has_is_named_as_such() -> None:
    scenario = Scenario("slower", (Change(at=15, slowdown=2.0),))
    contest = small_contest(scenario=scenario)
    given = options(repeat.command(contest.to_json(), tuners=["mine"], seeds=1))
    assert given["--model"] == "PROFILE.json"
    assert given["--scenario"] == "SCENARIO.toml"
    assert given["--plugin"] == "TUNERS.py"


def test_what_no_option_sets_is_told(folder: Path) -> None:
    contest = replace(small_contest(), effects=Effects(incast=0.1, inflight_bytes=1e6), switch_s=0.5)
    assert repeat.beyond(contest.to_json()) == ["inflight_bytes", "incast", "switch_s"]
    page = Reader(render(read_outcome(folder / "compare.json"), run=contest.to_json()))
    assert "No option sets these: inflight_bytes, incast, switch_s." in page.text


# What is refused

Harm = Callable[[Path], object]


def edit(change: Callable[[dict[str, Any]], object]) -> Harm:
    """Change what compare.json says."""

    def harm(folder: Path) -> None:
        path = folder / "compare.json"
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return harm


def ask(statement: str) -> Harm:
    """Change the database."""

    def harm(folder: Path) -> None:
        connection = sqlite3.connect(folder / "results.sqlite")
        with connection:
            connection.execute(statement)
        connection.close()

    return harm


REFUSED: dict[str, tuple[Harm, str]] = {
    "no folder": (shutil.rmtree, r"no comparison was finished in .*/out; run `autobyte compare --out .*/out` first"),
    "no file": (lambda f: (f / "compare.json").unlink(), "no comparison was finished"),
    "half a file": (
        lambda f: (f / "compare.json").write_text('{"kind": '),
        r"compare.json is damaged: Expecting value",
    ),
    "no text": (lambda f: (f / "compare.json").write_bytes(b"\xff\xfe\x00"), "compare.json is damaged"),
    "another thing": (lambda f: (f / "compare.json").write_text("[1]"), "compare.json is not a comparison"),
    "another kind": (edit(lambda d: d.update(kind="autobyte-profile")), "is not a comparison"),
    "another schema": (edit(lambda d: d.update(schema=2)), "has schema 2; this version reads 1"),
    "no tuners": (edit(lambda d: d.update(tuners=[])), "tuners: List should have at least 1 item"),
    "a hole": (edit(lambda d: d["tuners"][1].pop("regret")), "tuners.1.regret: Field required"),
    "a word": (edit(lambda d: d["optimum"].update(samples_per_s="fast")), r"optimum.samples_per_s: .*got 'fast'"),
    "ragged": (edit(lambda d: d["landscape"]["samples_per_s"].pop()), "landscape: .*a speed for every partition"),
    "not a number": (edit(lambda d: d["tuners"][0]["regret_curve"].append(float("nan"))), "regret_curve.3"),
    "another database": (
        lambda f: (f / "results.sqlite").write_text("hello" * 200),
        "results.sqlite: file is not a data",
    ),
    "empty database": (lambda f: (f / "results.sqlite").write_bytes(b""), "is not a results database"),
    "newer database": (ask("UPDATE meta SET schema = 2"), "results.sqlite has schema 2; this version reads 1"),
    "another run": (ask("""UPDATE meta SET run = '{"job": {}}'"""), "holds another run than compare.json"),
    "no run": (ask("UPDATE meta SET run = 'x'"), "the run is corrupt"),
    "a bad trial": (ask("UPDATE trial SET step_s = '[' WHERE seed = 1"), "trial 0 of 'default', seed 1 is corrupt"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line_and_no_page(folder: Path, case: str) -> None:
    harm, message = REFUSED[case]
    harm(folder)
    with pytest.raises(FileError, match=message) as caught:
        write_page(folder)
    assert len(str(caught.value).splitlines()) == 1
    assert not (folder / "report.html").exists()


def test_the_page_of_somebody_else_stays(folder: Path) -> None:
    (folder / "report.html").write_text("<!doctype html><title>mine</title>")
    with pytest.raises(FileError, match=r"report.html was not written by `autobyte report`; move it away first"):
        write_page(folder)
    assert (folder / "report.html").read_text() == "<!doctype html><title>mine</title>"
    assert sorted(path.name for path in folder.iterdir()) == ["compare.json", "report.html", "results.sqlite"]


def test_a_folder_in_its_place_is_told(folder: Path) -> None:
    (folder / "report.html").mkdir()
    with pytest.raises(FileError, match=r"cannot write .*report.html: Is a directory"):
        write_page(folder)


# Looking into a database


def test_a_run_in_flight_can_be_looked_into(folder: Path) -> None:
    path = folder / "results.sqlite"
    with Results.read(path) as results:
        asked = results.run
    with Results.open(path, run=asked) as writer:
        writer.add(window(0, Config(1, 1), 1.0, 1.0), tuner="late", seed=0, number=0)
        assert path.with_name("results.sqlite-wal").exists()  # not yet in the file itself
        with Results.read(path) as results:
            assert results.find(tuner="late", seed=0, number=0) is not None
            with pytest.raises(FileError, match="readonly"):
                results.add(window(1, Config(1, 1), 1.0, 1.0), tuner="late", seed=0, number=1)


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="unable to open"):
        Results.read(tmp_path / "results.sqlite")
    assert list(tmp_path.iterdir()) == []
