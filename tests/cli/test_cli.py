"""The commands, as a user types them: what they print, what they keep, what they refuse."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autobyte.cli import run
from autobyte.comparison import contest as contests
from autobyte.comparison.carried import say as say_carried
from autobyte.comparison.oracle import lack
from autobyte.models import load
from autobyte.scheduler.policies import POLICIES
from autobyte.trace import Measurement
from autobyte.units import format_seconds

DATA = Path(__file__).parents[1] / "data"
EXAMPLES = Path(__file__).parents[2] / "examples"
PROFILE = DATA / "small_vgg.json"
QUICK = ["compare", "--model", str(PROFILE), "--bandwidth", "1Gbit", "--budget", "4", "--seeds", "2"]

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    """Run a command; status, stdout and stderr come back."""
    monkeypatch.setenv("COLUMNS", "160")

    def command(*words: str | Path) -> tuple[int, str, str]:
        status = run([str(word) for word in words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return command


def test_models_lists_them_all(say: Say) -> None:
    rows = json.loads(say("models", "--json")[1])["models"]
    assert {row["name"]: row["parameters"] for row in rows}["gpt2"] == 124_439_808
    table = say("models")[1]
    assert all(row["name"] in table for row in rows)


def test_simulate_prints_what_the_readme_says(say: Say) -> None:
    words = "simulate --model vgg16 --arch allreduce --workers 8 --bandwidth 10Gbit --policy bytescheduler"
    status, out, _ = say(*words.split(), "--partition", "4MiB", "--credit", "4x", "--json")
    answer = json.loads(out)
    assert status == 0
    assert answer["samples_per_s"] == pytest.approx(8 * 32 / answer["step_s"])
    assert answer["over_bound"] == pytest.approx(answer["step_s"] / answer["bound_s"])
    assert answer["over_bound"] >= 1
    assert answer["blocks"] == sum(-(-4 * n // (4 << 20)) for n in _vgg16_sizes())
    assert answer["gap_closed"] is None or isinstance(answer["gap_closed"], float)
    shown = say(*words.split(), "--partition", "4MiB", "--credit", "4x")[1]
    assert "simulated" in shown
    assert "bound" in shown


def test_the_example_of_simulate_shows_a_gain(say: Say) -> None:
    page = (EXAMPLES.parent / "docs" / "simulate.md").read_text()
    out = say("simulate", "--model", "vgg16", "--bandwidth", "25Gbit", "--policy", "usbyte")[1]
    table = "\n".join(line.rstrip() for line in out.splitlines()[3:11])
    assert f"```text\n{table}\n```" in page
    assert "gap between DDP at its best and the bound, closed: 91.3 %" in table


def test_sizes_that_a_policy_does_not_have_are_one_line(say: Say) -> None:
    for policy, option in (("fifo", "partition"), ("fifo", "credit"), ("ddp", "credit"), ("tictac", "partition")):
        status, _, err = say("simulate", "--model", PROFILE, "--policy", policy, f"--{option}", "4MB")
        assert (status, err) == (2, f"autobyte: policy '{policy}' has no {option}: leave --{option} out\n")
    assert say("simulate", "--model", PROFILE, "--policy", "ddp", "--partition", "4MB")[0] == 0


def test_simulate_takes_units_lists_and_scenarios(say: Say) -> None:
    words = ["simulate", "--model", PROFILE, "--workers", "2", "--bandwidth", "1Gbit,500Mbit", "--slowdown", "1,2"]
    answer = json.loads(say(*words, "--latency", "2ms", "--overhead", "1ms,0s", "--json")[1])
    assert answer["job"]["up_bytes_per_s"] == [1.25e8, 6.25e7]
    assert answer["job"]["slowdown"] == [1.0, 2.0]
    assert answer["job"]["overhead_s"] == [1e-3, 0.0]
    changing = EXAMPLES / "scenarios" / "bandwidth-10-3.toml"
    steps = json.loads(say("simulate", "--model", PROFILE, "--scenario", changing, "--json")[1])["steps_s"]
    assert len(steps) == 60
    assert steps[30] > steps[10]
    assert steps[50] == pytest.approx(steps[10])


def test_simulate_writes_a_trace_and_never_over_a_file(say: Say, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    assert say("simulate", "--model", PROFILE, "--trace", trace)[0] == 0
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"M", "X", "C", "s", "t", "f"} == {event["ph"] for event in events}
    before = trace.read_text()
    status, _, err = say("simulate", "--model", PROFILE, "--trace", trace)
    assert (status, trace.read_text()) == (2, before)
    assert "exists already" in err


def test_compare_prints_one_object(say: Say) -> None:
    status, out, _ = say(*QUICK, "--tuners", "default,grid,random", "--arch", "ps", "--json")
    answer = json.loads(out)
    assert status == 0
    assert set(answer) >= {"job", "optimum", "best_constant", "tuners"}
    keys = {"config", "samples_per_s", "speedup_over_fifo", "gap_closed", "regret"}
    keys |= {"iterations", "search_cost_s", "tuner_cpu_s", "switches", "spread"}
    for row, name in zip(answer["tuners"], ("default", "grid", "random"), strict=True):
        assert row["name"] == name
        assert keys <= set(row)
        assert row["regret"] >= 0
        assert row["samples_per_s"] <= answer["optimum"]["samples_per_s"] * (1 + 1e-12)
        assert row["spread"]["regret"][0] <= row["regret"] <= row["spread"]["regret"][1]
    best = max(speed for row in answer["landscape"]["samples_per_s"] for speed in row)
    assert answer["optimum"]["samples_per_s"] >= best


def test_the_table_of_the_demo_is_the_recorded_one(say: Say) -> None:
    out = say("compare", "--model", PROFILE, "--workers", "8", "--bandwidth", "1Gbit")[1]
    recorded = DATA / "demo.txt"
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines == recorded.read_text().splitlines()
    assert "\n".join(lines[:11]) in (EXAMPLES.parent / "docs" / "index.md").read_text()


def test_two_runs_are_equal_to_the_byte_but_for_measured_times(say: Say) -> None:
    def outcome() -> str:
        answer = json.loads(say(*QUICK, "--jitter", "0.1", "--json")[1])
        for row in answer["tuners"]:
            del row["tuner_cpu_s"], row["spread"]["tuner_cpu_s"]
        return json.dumps(answer)

    assert outcome() == outcome()


def test_a_run_that_was_interrupted_goes_on_where_it_was(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = say(*QUICK, "--out", tmp_path / "whole")
    ran: list[Measurement] = []
    measure = contests.World.measure

    def interrupted(world, config, **how):
        if len(ran) == 7:
            raise KeyboardInterrupt
        ran.append(measure(world, config, **how))
        return ran[-1]

    monkeypatch.setattr(contests.World, "measure", interrupted)
    status, _, err = say(*QUICK, "--out", tmp_path / "halves")
    assert status == 130
    assert "kept" in err
    ran.clear()
    monkeypatch.setattr(contests.World, "measure", lambda w, c, **how: ran.append(measure(w, c, **how)) or ran[-1])
    assert say(*QUICK, "--out", tmp_path / "halves")[1] == whole[1].replace("whole", "halves")
    assert len(ran) == 4 * 2 * 4 - 7  # tuners x seeds x windows, but for those that were kept


def test_a_killed_run_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "autobyte", *QUICK, "--out", str(tmp_path / "run")]
    process = subprocess.Popen([*words[:-4], "--budget", "2000", *words[-4:]], stderr=subprocess.DEVNULL)
    database = tmp_path / "run" / "results.sqlite"
    deadline = time.monotonic() + 60
    while _trials(database) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert _trials(database) >= 5


def test_a_folder_of_another_run_is_left_alone(say: Say, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    say(*QUICK, "--out", folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    status, _, err = say(*QUICK, "--out", folder, "--workers", "4")
    assert status == 2
    assert "holds another run" in err
    assert "workers" in err
    assert before == {file.name: file.read_bytes() for file in folder.iterdir() if file.name in before}
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    status, _, err = say(*QUICK, "--out", other)
    assert (status, "thesis.tex" in err) == (2, True)


def test_a_scenario_is_judged_over_the_whole_run(say: Say) -> None:
    changing = EXAMPLES / "scenarios" / "bandwidth-10-3.toml"
    answer = json.loads(say(*QUICK, "--tuners", "default", "--scenario", changing, "--json")[1])
    assert answer["job"]["scenario"] == "10 and 3 Gbit/s in turn"
    default = answer["tuners"][0]
    steady = json.loads(say(*QUICK, "--tuners", "default", "--json")[1])["tuners"][0]
    assert default["samples_per_s"] != steady["samples_per_s"]


def test_a_scenario_says_what_the_best_constant_lacks_of_the_oracle(say: Say, tmp_path: Path) -> None:
    changing = tmp_path / "slower.toml"
    changing.write_text('[[change]]\nat = 15\nbandwidth = "50Mbit"\n')
    words = [*QUICK, "--tuners", "default,random"]
    out = say(*words, "--scenario", changing, "--out", tmp_path / "run")[1]
    answer = json.loads((tmp_path / "run" / "compare.json").read_text())
    oracle, before = answer["oracle"], answer["tuners"][1]["before_cost_s"]
    assert f"\nwhole run: oracle {oracle['samples_per_s']:,.1f} samples/s, {lack(oracle['gap'])}\n" in out
    assert f"\n{say_carried(answer['carried'])}\n" in out
    assert "gap closed: from DDP to the bound, not to the oracle." in out
    assert f"Searching before the scenario cost besides: random {format_seconds(before)}." in out
    steady = say(*words)[1]
    assert not any(word in steady for word in ("oracle", "whole run", "before the scenario", "tied configs"))


def test_profile_then_import_then_simulate(say: Say, tmp_path: Path) -> None:
    out = tmp_path / "model.json"
    model = tmp_path / "model.py"
    model.write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))\n"
    )
    words = ("profile", f"{model}:make", "--input", "4,8", "--repeats", "3", "--warmup", "1", "--out", out)
    status, shown, _ = say(*words)
    assert status == 0
    assert "2 layers" in shown
    assert say(*words)[0] == 2  # never over a file
    assert say("simulate", "--model", out)[0] == 0
    graph = tmp_path / "graph.txt"
    graph.write_text(
        "node1 -- Input -- forward_compute_time=1.0, backward_compute_time=0.0, activation_size=602112.0, "
        "parameter_size=0.000\nnode2 -- Linear(in_features=8, out_features=2, bias=True) -- forward_compute_time=2.0,"
        " backward_compute_time=3.0, activation_size=8.0, parameter_size=72.000\n\tnode1 -- node2\n"
    )
    imported = tmp_path / "imported.json"
    status, _, err = say("import", "pipedream", graph, "--out", imported)
    assert (status, err) == (0, "")
    assert json.loads(say("simulate", "--model", imported, "--json")[1])["job"]["parameters"] == 18


def test_the_references_of_a_scenario_are_those_of_its_clusters(say: Say) -> None:
    words = ["simulate", "--model", PROFILE, "--json"]
    fast, slow = (json.loads(say(*words, "--bandwidth", rate)[1]) for rate in ("10Gbit", "3Gbit"))
    both = json.loads(say(*words, "--scenario", EXAMPLES / "scenarios" / "bandwidth-10-3.toml")[1])
    for name in ("bound_s", "ddp_best_s", "fifo_s"):
        assert both[name] == pytest.approx((40 * fast[name] + 20 * slow[name]) / 60)  # 3 Gbit/s from 20 to 40


def test_workers_that_differ_are_shown_once_they_have_settled(say: Say) -> None:
    words = ["simulate", "--model", PROFILE, "--workers", "2", "--arch", "ps", "--slowdown", "1,2"]
    answer = json.loads(say(*words, "--bandwidth", "1Gbit", "--json")[1])
    assert len(answer["steps_s"]) > 1
    assert answer["steps_s"][-1] == pytest.approx(answer["step_s"], rel=1e-3)
    spent = sum(layer["forward_s"] + layer["backward_s"] + layer["stall_s"] for layer in answer["layers"])
    assert spent == pytest.approx(sum(answer["steps_s"]) / len(answer["steps_s"]), rel=0.02)  # nothing else to do
    assert "worker 0's forward waits most for layers '" in say(*words)[1]


def test_doctor_with_a_profile_under_torchrun_speaks_once_and_does_not_fail(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun takes every status but 0 for a failure, and all ranks would print the same."""
    words = ("doctor", "--profile", PROFILE, "--workers", "1")  # nothing to gain
    assert say(*words)[0] == 3
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("RANK", "0")
    status, out, _ = say(*words)
    assert status == 0 and "keep DDP" in out
    assert re.search(r"^fifo +– ", out, re.MULTILINE) and "1 GiB, 1x" not in out  # it has no sizes
    assert say(*words, "--exit-code")[0] == 3
    monkeypatch.setenv("RANK", "1")
    assert say(*words, "--exit-code")[:2] == (0, "")


def test_where_there_is_nothing_to_gain_it_says_so(say: Say) -> None:
    assert "there is nothing to gain" in say("simulate", "--model", PROFILE, "--workers", "1")[1]
    assert "slower than DDP" in say("simulate", "--model", "vgg16", "--partition", "64KiB")[1]


@pytest.mark.parametrize("columns", [60, 80, 90, 160])
def test_tables_fit_the_window_or_say_what_is_left_out(
    say: Say, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    for words in (("models",), (*QUICK, "--tuners", "default,random")):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = re.sub(r"\x1b\[[0-9;]*m", "", say(*words)[1]).splitlines()
        assert not any("…" in line for line in lines)
        assert columns < 80 or max(map(len, lines)) <= columns
        assert any(line.startswith("No room for: ") for line in lines) == (columns < 100)


def test_without_a_command_the_help_is_printed(say: Say) -> None:
    for words in ((), ("import",)):
        status, out, err = say(*words)
        assert (status, out) == (2, "")
        assert len(err.splitlines()) > 5


def test_the_list_of_commands_is_not_cut_short(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = say("--help")
    assert status == 0
    assert not any(line.endswith("...") for line in out.partition("Commands:")[2].splitlines())


def test_a_link_without_limit_is_compared_and_reported(say: Say, tmp_path: Path) -> None:
    assert say(*QUICK, "--bandwidth", "inf", "--tuners", "default", "--out", tmp_path / "run")[0] == 0
    assert say("report", tmp_path / "run")[0] == 0
    assert "inf Gbit/s" in (tmp_path / "run" / "report.html").read_text()


def test_report_says_what_is_wrong_with_a_folder(say: Say, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "results.sqlite").write_text("")
    which = "name one that `autobyte compare --out` or `autobyte bench --out` wrote"
    for name, told in {
        "nowhere": f"does not exist; {which}",
        "file": f"is not a folder; {which}",
        "empty": f"holds no results; {which}",
        "begun": "has not ended; run the same `autobyte compare` again",
    }.items():
        status, out, err = say("report", tmp_path / name)
        assert (status, out) == (2, "")
        assert err.endswith(f"'{tmp_path / name}' {told}\n") and len(err.splitlines()) == 1


PLUGIN = """
from autobyte.tuners.fixed import Default
@Default.register("crashes")
class Crashes(Default):
    def ask(self):
        raise RuntimeError("boom")
@Default.register("refuses")
class Refuses(Default):
    def __init__(self, *arguments, **options):
        raise TypeError("never")
"""


def test_a_tuner_that_fails_is_named(say: Say, tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN)
    words = [*QUICK, "--plugin", plugin, "--out", tmp_path / "run", "--tuners"]
    out = say(*words, "default,crashes")[1]
    assert "crashes failed in 2 runs; the best so far went on." in out
    assert "default failed" not in out
    say("report", tmp_path / "run")
    assert "crashes failed in 2 runs" in (tmp_path / "run" / "report.html").read_text()
    status, _, err = say(*words, "refuses")
    assert status == 2
    assert err.endswith("autobyte: tuner 'refuses' cannot be made: TypeError: never\n")
    plugin.write_text("raise SystemExit(3)")
    assert say(*words, "default")[::2] == (2, f"autobyte: {plugin} fails: SystemExit: 3\n")


def test_a_step_that_takes_no_time_is_refused(say: Say, tmp_path: Path) -> None:
    profile = json.loads(PROFILE.read_text())
    profile["layers"] = [{"name": "nothing", "forward_s": 0, "backward_s": 0}]
    (tmp_path / "nothing.json").write_text(json.dumps(profile))
    status, _, err = say("simulate", "--model", tmp_path / "nothing.json")
    assert (status, err) == (
        2,
        "autobyte: a step of 'small_vgg' takes no time: nothing computes, and nothing travels\n",
    )


ANOTHERS = """
from autobyte import Policy
from autobyte.scheduler.policies.bytescheduler import ByteScheduler
@Policy.register("anothers")
class Anothers(ByteScheduler):
    pass
@Policy.register("ones-own")
class OnesOwn(ByteScheduler):
    def space(self, job):
        from dataclasses import replace
        space = super().space(job)
        return replace(space, default=replace(space.default, policy="ones-own"))
"""


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "--policies"),
        ("compare", "--budget", "1", "--seeds", "1", "--tuners", "default", "--policy"),
        ("simulate", "--policy"),
    ],
)
def test_a_plugins_policy_runs_as_itself_or_not_at_all(
    say: Say, tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(POLICIES, "_classes", dict(POLICIES._classes))  # other tests look at all there are
    plugin = tmp_path / "mine.py"
    plugin.write_text(ANOTHERS)
    command = [words[0], "--model", PROFILE, "--plugin", plugin, *words[1:]]
    status, out, err = say(*command, "anothers")
    assert (status, out) == (2, "")
    expected = "policy 'anothers': the default config of its space() is of 'bytescheduler', which would run instead"
    assert err == f"autobyte: {expected}; write Config(…, policy='anothers') there\n"
    assert say(*command, "ones-own")[0] == 0


BAD = {
    "unknown model": (("simulate", "--model", "vgg"), "did you mean 'vgg16'?"),
    "a name in capitals": (("simulate", "--model", "VGG16"), "did you mean 'vgg16'?"),
    "unknown policy": (("simulate", "--model", "vgg16", "--policy", "dpd"), "did you mean 'ddp'?"),
    "a policy that only training has": (("simulate", "--model", "vgg16", "--policy", "auto"), "--policies auto,ddp"),
    "auto while tuners are compared": (("compare", "--model", "vgg16", "--policy", "auto"), "--policies auto,ddp"),
    "doctor with a model and one rank": (("doctor", "my.py:make", "--input", "2,3"), "my.py:make --input '2,3'"),
    "unknown knob": (("simulate", "--model", "vgg16", "--knob", "fusio=1"), "did you mean 'fusion'?"),
    "unknown tuner": (("compare", "--model", "vgg16", "--tuners", "default,randm"), "did you mean 'random'?"),
    "unknown architecture": (("simulate", "--model", "vgg16", "--arch", "ring"), "known: allreduce, ps"),
    "zero size": (("simulate", "--model", "vgg16", "--partition", "0"), "partition must be at least 1 byte, got '0'"),
    "a size without unit": (
        ("simulate", "--model", "vgg16", "--partition", "4"),
        "partition '4' has no unit: write 4MiB, or 4B if you mean bytes",
    ),
    "a credit without unit": (
        ("simulate", "--model", "vgg16", "--credit", "4"),
        "credit '4' has no unit: write 4MiB, 4x for partitions, or 4B if you mean bytes",
    ),
    "nothing to tune with": (("compare", "--model", "vgg16", "--tune-with", "grid"), "--tune-with is for --policies"),
    "no data set": (("fit",), "a folder that `autobyte collect --out FOLDER` wrote"),
    "not a size": (("simulate", "--model", "vgg16", "--partition", "big"), "write it like 4MiB"),
    "zero credit": (("simulate", "--model", "vgg16", "--credit", "0x"), "credit must be positive, got '0x'"),
    "zero rate": (("simulate", "--model", "vgg16", "--bandwidth", "0Gbit"), "must be positive, got '0Gbit'"),
    "negative rate": (("simulate", "--model", "vgg16", "--bandwidth", "-1Gbit"), "must be positive, got '-1Gbit'"),
    "NaN rate": (("simulate", "--model", "vgg16", "--bandwidth", "nanGbit"), "must be positive, got 'nanGbit'"),
    "negative time": (("simulate", "--model", "vgg16", "--latency", "-1ms"), "got '-1ms'"),
    "one overhead": (("simulate", "--model", "vgg16", "--overhead", "1ms"), "overhead is two times"),
    "no worker": (("simulate", "--model", "vgg16", "--workers", "0"), "workers must be a whole number of at least 1"),
    "too many workers": (("simulate", "--model", "vgg16", "--workers", "100000000000"), "at most 1,000,000"),
    "too many blocks": (
        ("simulate", "--model", "vgg16", "--partition", "1B"),
        "partition 1B makes 553,430,176 blocks",
    ),
    "no iteration": (
        ("simulate", "--model", "vgg16", "--iterations", "0"),
        "iterations must be at least 1, got 0",
    ),
    "nowhere to trace to": (("simulate", "--model", "alexnet", "--trace", "no/where.json"), "No such file or dir"),
    "nowhere to write to": (("profile", "model.py:make", "--out", "no/where.json"), "there is no folder no"),
    "a tuner twice": (("compare", "--model", "vgg16", "--tuners", "grid,grid"), "tuner 'grid' is named twice"),
    "nothing to retune for": (
        ("compare", "--model", "vgg16", "--retune", "drift"),
        "--retune is for jobs that change; add --scenario, or leave --retune out",
    ),
    "nothing to search before": (
        ("compare", "--model", "vgg16", "--before", "all"),
        "--before is for jobs that change; add --scenario, or leave --before out",
    ),
    "not a number": (("simulate", "--model", "vgg16", "--workers", "many"), "--workers"),
    "rates that do not fit": (
        ("simulate", "--model", "vgg16", "--bandwidth", "1Gbit,2Gbit"),
        "bandwidth needs one rate, or one for each of 8 workers, got 2",
    ),
    "no budget": (("compare", "--model", "vgg16", "--budget", "0"), "budget must be at least 1, got 0"),
    "no such profile": (("simulate", "--model", "none.json"), "cannot read profile none.json"),
    "no such scenario": (
        ("simulate", "--model", "vgg16", "--scenario", "none.toml"),
        "cannot read scenario none.toml",
    ),
    "no such plugin": (("compare", "--model", "vgg16", "--plugin", "none.py"), "no such Python file: none.py"),
    "no such folder": (("report", "nowhere"), "nowhere"),
    "no such command": (("simulat",), "simulat"),
    "no model": (("simulate",), "--model"),
    "not a factory": (("profile", "model.py"), "write it like model.py:make_model"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(say: Say, case: str) -> None:
    words, expected = BAD[case]
    status, out, err = say(*words)
    assert (status, out) == (2, "")
    assert err.startswith("autobyte: ")
    assert err.count("\n") == 1
    assert expected in err


def test_a_full_disk_is_one_clear_line_and_no_half_a_file(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")  # a limit on the size of files stands for the disk's
    trace = tmp_path / "trace.json"
    done = subprocess.run(
        [sys.executable, "-m", "autobyte", "simulate", "--model", str(PROFILE), "--trace", str(trace)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"cannot write trace {trace}" in done.stderr
    assert not trace.exists()


def _vgg16_sizes() -> list[int]:
    return [tensor.numel for tensor in load("vgg16").tensors]


def _trials(database: Path) -> int:
    try:
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
            return int(connection.execute("SELECT count(*) FROM trial").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
