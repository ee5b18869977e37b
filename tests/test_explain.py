"""What is said of a trace, from traces that are made up; and files that are none."""

import json
from pathlib import Path
from typing import Any

import pytest

from autobyte.cli import run
from autobyte.errors import FileError
from autobyte.explain import explain, read_trace
from autobyte.trace import BlockSpan, Span, Trace


def made_up(
    path: Path, *, compute: float, exposed: float, wire: float, idle: float = 0.0, slow: float = 1.0, **about: Any
) -> Path:
    """Two steps of two ranks, in ms: compute, then a wait, then nothing; blocks end with the wait."""
    trace = Trace(about=about)
    step_s = (compute * max(slow, 1.0) + exposed + idle) / 1e3
    for rank, factor in ((0, 1.0), (1, slow)):
        for step in range(2):
            start_s = step * step_s
            computed_s = start_s + compute * factor / 1e3
            waited_s = start_s + step_s - idle / 1e3
            trace.steps.append(Span(rank, step, "step", -1, "", start_s, start_s + step_s))
            trace.spans.append(Span(rank, step, "backward", 0, "l", start_s, computed_s))
            trace.waits.append(Span(rank, step, "wait", 0, "l", computed_s, waited_s))
            times = start_s, waited_s - wire / 1e3, waited_s, waited_s
            trace.blocks.append(BlockSpan(rank, step, 0, 8, (0,), *times))
    trace.save(path)
    return path


def said(path: Path, **made: Any) -> list[str]:
    return explain(read_trace(made_up(path, **made)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def test_where_the_network_limits_it_says_so_and_names_the_bytes(path: Path) -> None:
    where, why, what = said(path, compute=100, exposed=45, wire=140, policy="bytescheduler")
    assert where == (
        "Rank 0, which computes longest, takes 145 ms a step: 69.0 % compute, 31.0 % exposed communication, "
        "0.0 % idle; 67.9 % of its communication is hidden."
    )
    assert why == "Communication takes 1.4 × compute, so with these bytes no schedule brings a step below 140 ms."
    assert (
        what == "Try bf16 on the wire (wire_dtype='bf16'), which halves the bytes, or more backward passes per step."
    )
    *_, what = said(path, compute=100, exposed=45, wire=140, wire_dtype="bfloat16")
    assert (
        what
        == "Try more backward passes per step, a larger batch or faster links: gradients travel in 16 bits already."
    )
    *_, what = said(path, compute=100, exposed=100, wire=140)
    assert what.startswith("Try policy='auto', which can gain 30.0 % at most, then bf16 on the wire")


def test_where_a_schedule_can_help_it_names_one(path: Path) -> None:
    _, why, what = said(path, compute=100, exposed=30, wire=80, policy="ddp")
    assert why == "Communication takes 0.8 × compute, so a schedule may hide it: no step is below 100 ms."
    assert what == "DDP's buckets do not cross the step: try policy='auto', which measures schedules that do."
    *_, what = said(path, compute=100, exposed=30, wire=80, policy="bytescheduler")
    assert what.startswith("Try policy='auto' or tuner='twin'")


def test_where_compute_limits_it_keeps_what_there_is(path: Path) -> None:
    _, why, what = said(path, compute=100, exposed=1, wire=50, policy="ddp")
    assert why == "The job is compute-bound: communication takes 0.5 × compute, and nearly all of it is hidden."
    assert what == "Keep DDP: another schedule can gain 1.0 % at most."
    assert "Keep the config:" in said(path, compute=100, exposed=1, wire=50, policy="usbyte")[2]


def test_idle_time_comes_first_where_it_is_most(path: Path) -> None:
    _, why, what = said(path, compute=100, exposed=20, wire=50, idle=80)
    assert why.startswith("In idle time the rank neither computes nor waits")
    assert "DataLoader" in what


def test_a_rank_that_others_wait_for_is_named(path: Path) -> None:
    where, why, what = said(path, compute=100, exposed=1, wire=20, slow=1.5)
    assert where.startswith("Rank 1, which computes longest, takes 151 ms a step")
    assert why.startswith("Its compute takes 1.2 × the median rank's, so the others wait for it")
    assert "equal share" in what


def test_one_rank_alone_sends_nothing(path: Path) -> None:
    spans = [Span(0, 0, "forward", 0, "l", 0.0, 1.0)]
    Trace(spans=spans, steps=[Span(0, 0, "step", -1, "", 0.0, 1.0)]).save(path)
    assert explain(read_trace(path)) == [
        "The rank takes 1 s a step: 100.0 % compute, 0.0 % exposed communication, 0.0 % idle.",
        "Nothing travels in this trace.",
        "Faster compute alone shortens the step.",
    ]


def test_the_first_step_of_several_does_not_count(path: Path) -> None:
    steps = [Span(0, 0, "step", -1, "", 0.0, 9.0), Span(0, 1, "step", -1, "", 9.0, 10.0)]
    Trace(spans=[Span(0, 1, "forward", 0, "l", 9.0, 10.0)], steps=steps).save(path)
    assert read_trace(path).ranks[0].step_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("not JSON", "is no trace: it is not JSON"),
        ("[]", "is a trace of another kind, or damaged"),
        ('{"traceEvents": [{"ph": "X", "cat": "step", "pid": 0, "ts": 0, "dur": 1, "args": {}}]}', "another kind"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel"}]}', "has no row of steps"),
    ],
)
def test_other_files_are_refused_in_one_line(path: Path, text: str, why: str) -> None:
    path.write_text(text)
    with pytest.raises(FileError, match=why) as error:
        read_trace(path)
    assert "name one that" in str(error.value)


def test_the_command_says_three_sentences(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_up(path, compute=100, exposed=50, wire=140, missing_ranks=[2], missing_because="the optimizer was closed")
    assert run(["explain", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == explain(read_trace(path))
    assert err == "autobyte: ranks [2] are not in this trace: the optimizer was closed\n"
    assert run(["explain", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["explanation"] == explain(read_trace(path))
    assert data["ranks"]["1"]["step_ms"] == pytest.approx(150)


def test_the_command_names_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "nowhere.json"]) == 2
    assert capsys.readouterr().err == "autobyte: cannot read trace nowhere.json: No such file or directory\n"


def test_a_simulated_trace_is_explained_likewise(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--model", "alexnet", "--workers", "2", "--bandwidth", "1Gbit", "--trace", str(path)]
    assert run(words) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"autobyte explain {path}")
    assert run(["explain", str(path)]) == 0
    assert "exposed communication" in capsys.readouterr().out
    about = read_trace(path).about
    assert (about["what"], about["model"], about["workers"]) == ("simulated", "alexnet", 2)


def test_the_listing_in_the_page_is_what_is_said(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parent.parent / "docs" / "trace.md").read_text()
    words = next(line for line in page.splitlines() if line.startswith("autobyte simulate")).split()
    words[words.index("simulated.json")] = str(path)
    assert run(words[1:]) == 0
    capsys.readouterr()
    assert run(["explain", str(path)]) == 0
    assert "```text\n" + capsys.readouterr().out + "```" in page
