"""The bench: its arithmetic on rows made by hand, and one run through real sockets on shaped links."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from beds import needs_namespaces
from typer.testing import CliRunner

from autobyte.bench.bench import BUCKETS_MIB, Cell, runs, table, to_json
from autobyte.bench.plot import draw_bench
from autobyte.bench.policies import STEADY, tuned
from autobyte.bound import bound_s
from autobyte.cli import app
from autobyte.config import Config
from autobyte.models import find
from autobyte.simulator.calibrate import EngineCosts
from autobyte.simulator.steady import step_s

CELL = Cell("vgg16", hosts=4, rate=1.25e8, compute_s=0.6, size_scale=0.1)
STEPS_S = {"fifo": 1.34, "autobyte-default": 0.8, "autobyte-tuned": 0.7, "autobyte-auto": 0.71}
DDP_S = {1: 0.92, 4: 0.93, 25: 0.98, 100: 1.37}


def rows(*, slower: float = 1.0) -> list[dict[str, Any]]:
    made = []
    for run in runs(tuner="random", windows=2, wire_dtypes=[None, "bf16"]):
        step_s = DDP_S[run["bucket_mib"]] if run["scheduler"] == "ddp" else STEPS_S[run["name"]]
        scale = slower * (0.6 if run["wire_dtype"] else 1.0)
        config = {} if run["scheduler"] == "ddp" else {"config": Config(1 << 20, 4 << 20).to_json()}
        made.append(run | config | {"steps_s": [scale * step_s] * 3, "cpu_s": 0.1})
    return made


def test_ratios_are_to_ddp_at_its_best_in_the_same_dtype() -> None:
    found = {(r["scheduler"], r["architecture"], r["wire_dtype"]): r for r in table(CELL, rows())}
    assert found["ddp-default", "allreduce", None]["config"] == {"bucket_mib": 25}
    assert found["ddp-best", "allreduce", None]["config"] == {"bucket_mib": 1}
    for wire in (None, "bf16"):
        tuned = found["autobyte-tuned", "allreduce", wire]
        assert tuned["speedup_over_ddp"] == pytest.approx(0.92 / 0.7)
        assert tuned["over_bound"] == pytest.approx(tuned["step_s"] / tuned["bound_s"])
    plain = found["autobyte-tuned", "allreduce", None]
    assert plain["bound_s"] == pytest.approx(0.695, abs=0.002)  # the wire at TCP's payload rate
    assert plain["gap_closed"] == pytest.approx((0.92 - 0.7) / (0.92 - plain["bound_s"]))
    assert found["fifo", "ps", None]["samples_per_s"] == pytest.approx(4 * find("vgg16").batch_size / 1.34)


def test_repeats_give_a_median_and_a_range() -> None:
    repeated = [*rows(), *rows(slower=1.2), *rows(slower=1.1)]
    row = next(r for r in table(CELL, repeated) if r["scheduler"] == "fifo")
    assert [row[key] for key in ("step_low_s", "step_s", "step_high_s")] == pytest.approx([1.34, 1.474, 1.608])


def test_what_was_not_to_be_trusted_is_said() -> None:
    assert to_json(CELL, rows())["warning"] == ""
    disturbed = [row | {"other_cores": 1.5, "unsound_links": 2} for row in rows()]
    told = to_json(CELL, [*rows(), *disturbed])["warning"]
    assert told.startswith("others used 1.5 cores of this machine meanwhile; 2 of 8 links did not hold 1 Gbit/s")


def test_what_is_run() -> None:
    wanted = runs(tuner="random", windows=2, wire_dtypes=[None, "bf16"])
    buckets = [run["bucket_mib"] for run in wanted if run["scheduler"] == "ddp" and run["wire_dtype"] is None]
    assert tuple(buckets) == BUCKETS_MIB
    named = {(run["name"], run["engine"]) for run in wanted if run["wire_dtype"] is None}
    assert {("fifo", "allreduce"), ("autobyte-tuned", "ps"), ("autobyte-auto", "allreduce")} <= named


def test_the_picture_has_a_bar_for_every_row(tmp_path: Path) -> None:
    draw_bench({"emulated": CELL.describe(), "rows": table(CELL, rows())}, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--wire", "int8"], "fp32, bf16 or fp16, not as int8"),
        (["--size-scale", "big"], "a number like 0.1, or auto, not 'big'"),
        (["--size-scale", "0"], "above 0 and at most 1"),
        (["--steps", "0"], "must be at least 1"),
        (["--dilate", "0.5"], "from 1 to 100, not 0.5"),
        (["--model", "vgg61"], "vgg16"),
        (["--tuner", "rondam"], "random"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    from autobyte.errors import AutoByteError  # noqa: PLC0415

    result = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(result.exception, AutoByteError)
    assert message in str(result.exception)


def test_dilated_time_stands_for_faster_links() -> None:
    dilated = replace(CELL, rate=CELL.rate / 4, compute_s=4 * CELL.compute_s, dilation=4.0)
    bounds = [bound_s(cell.job(servers=False, wire_dtype=None)) for cell in (CELL, dilated)]
    assert bounds[1] == pytest.approx(4 * bounds[0])
    assert "shaped to 0.25 Gbit/s, time dilated 4x: stands for 0.6 s on 1 Gbit/s" in dilated.describe()


@needs_namespaces
def test_schedulers_side_by_side_on_real_links(tmp_path: Path) -> None:
    asked = ["--hosts", "2", "--rate", "2Gbit", "--dilate", "2", "--compute", "20ms"]
    asked += ["--size-scale", "0.005", "--tuner", "default"]
    asked += ["--windows", "1", "--steps", "3", "--repeats", "1", "--out", str(tmp_path), "--json"]
    first = CliRunner().invoke(app, ["bench", *asked], catch_exceptions=False)
    outcome = json.loads(first.stdout)
    schedulers = {(r["scheduler"], r["architecture"], r["wire_dtype"]) for r in outcome["rows"]}
    assert len(schedulers) == len(outcome["rows"]) == 13
    assert outcome["cell"]["rate"] == 1.25e8
    assert "stands for 0.02 s on 2 Gbit/s" in outcome["emulated"]
    assert (tmp_path / "vgg16-2000Mbit-dilated2.json").exists()
    for row in outcome["rows"]:
        assert row["over_bound"] > 0.98
        assert row["step_s"] >= 0.04
    again = CliRunner().invoke(app, ["bench", *asked], catch_exceptions=False)  # read, not measured again
    assert json.loads(again.stdout) == outcome


def test_what_did_well_on_links_and_what_simulation_finds_best_are_measured() -> None:
    costs = EngineCosts(rate_share=0.99, latency_s=1e-5, overhead_s=2e-3, step_s=1e-3, sharing=8)
    job = costs.price(CELL.job(servers=False, wire_dtype=None))
    default, *steady_and_found = tuned(CELL, "bytescheduler:fusion=1", costs)
    steady, found = steady_and_found[:2], steady_and_found[2:]
    assert [(config.partition_bytes, config.credit_bytes) for config in steady] == list(STEADY)
    assert len(found) == 2
    assert {config.knobs["fusion"] for config in (default, *found)} == {1}
    slow = step_s(job, default, effects=costs.effects)
    assert all(step_s(job, config, effects=costs.effects) < slow for config in found)
    assert len(tuned(CELL, "usbyte", costs)) == 4  # it begins with one of the steady
    assert all(config.credit_bytes == config.partition_bytes for config in tuned(CELL, "ddp", costs))
    assert len(tuned(CELL, "wfbp", costs)) == 1  # it has nothing to tune


@needs_namespaces
def test_policies_side_by_side_on_real_links(tmp_path: Path) -> None:
    kept = Path(__file__).parents[2] / "paper" / "data" / "testbed_calibration.json"
    asked = ["--hosts", "2", "--rate", "1Gbit", "--compute", "40ms", "--size-scale", "0.005", "--steps", "3"]
    asked += ["--repeats", "1", "--policies", "wfbp,bytescheduler,dear", "--calibration", str(kept), "--json"]
    asked += ["--out", str(tmp_path)]
    outcome = json.loads(CliRunner().invoke(app, ["bench", *asked], catch_exceptions=False).stdout)
    found = {row["scheduler"]: row["config"].get("policy", "bytescheduler") for row in outcome["rows"]}
    assert {name: found[name] for name in ("wfbp", "bytescheduler", "dear")} == {
        "wfbp": "wfbp", "bytescheduler": "bytescheduler", "dear": "dear",
    }  # fmt: skip
    assert {"ddp-best", "ddp-default"} < found.keys()
    assert (tmp_path / "vgg16-1000Mbit.png").stat().st_size > 10_000
