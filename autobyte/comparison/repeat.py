"""The command that repeats a comparison, read back from the settings in its database."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from autobyte import models
from autobyte.simulator.effects import PLAIN
from autobyte.simulator.world import SWITCH_S
from autobyte.tuners import TUNERS
from autobyte.units import parse_rate, parse_seconds

Settings = dict[str, Any]  # what `Contest.to_json` returned


def command(run: Settings, *, tuners: list[str], seeds: int) -> str:
    """Write the command, an option on each line.

    PROFILE.json, SCENARIO.toml and TUNERS.py stand for files that only their owner has.
    """
    lines = [shlex.join(pair) for pair in _options(run, tuners, seeds)]
    return " \\\n  ".join(["autobyte compare", *lines, "--out again"])


def beyond(run: Settings) -> list[str]:
    """Name the settings that no option of the command sets: only a program can repeat them."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(PLAIN).items()}
    plain["inflight_bytes"] = str(plain["inflight_bytes"])
    names = [name for name, value in run["effects"].items() if name != "jitter" and plain.get(name) != value]
    names += ["switch_s"] * (run["switch_s"] != SWITCH_S)
    return names + ["down_bytes_per_s"] * (run["job"]["up_bytes_per_s"] != run["job"]["down_bytes_per_s"])


def _options(run: Settings, tuners: list[str], seeds: int) -> Iterator[tuple[str, str]]:
    """Options and their values; those that have defaults of no interest, where they differ."""
    job, policy = run["job"], run["space"]["default"].get("policy", "bytescheduler")
    yield "--model", job["model"] if _is_of_the_table(job) else "PROFILE.json"
    yield "--arch", job["architecture"]
    yield "--workers", str(job["workers"])
    yield "--bandwidth", _listed(job["up_bytes_per_s"], _rate)
    yield "--tuners", ",".join(tuners)
    if not set(tuners) <= set(TUNERS.names()):
        yield "--plugin", "TUNERS.py"
    yield "--budget", str(run["budget"])
    yield "--seeds", str(seeds)
    overhead = ",".join(_seconds(value) for value in job["overhead_s"])
    rest = [
        ("--policy", policy, "bytescheduler"),
        ("--slowdown", _listed(job["slowdown"], "{:g}".format), "1"),
        ("--latency", _seconds(job["latency_s"]), "30us"),
        ("--overhead", overhead, "500us,30us"),
        ("--gpus-per-node", str(job.get("gpus_per_node", 1)), "1"),
        ("--accumulation", str(job["accumulation"]), "1"),
        ("--wire-dtype", job["wire_dtype"] or "", ""),
        ("--jitter", f"{run['effects']['jitter']!r}", "0.0"),
        ("--scenario", "SCENARIO.toml" if run["scenario"]["changes"] else "", ""),
        ("--retune", run.get("retune", "never"), "never"),
        ("--before", run.get("before", "once"), "once"),
    ]
    yield from [(option, value) for option, value, default in rest if value != default]
    yield from [("--knob", f"{name}={value!r}") for name, value in run["space"]["default"]["knobs"].items()]


def _is_of_the_table(job: Settings) -> bool:
    if job["model"] not in models.names():
        return False
    known = models.load(job["model"])
    return [known.parameters, known.batch_size, known.compute_s] == [
        job[key] for key in ("parameters", "batch_size", "compute_s")
    ]


def _listed(values: Any, write: Any) -> str:
    return ",".join(write(value) for value in (values if isinstance(values, list) else [values]))


def _rate(bytes_per_s: float | str) -> str:
    """A rate that reads back as exactly this one; infinity is text already."""
    if isinstance(bytes_per_s, str):
        return bytes_per_s
    short = f"{bytes_per_s * 8 / 1e9:g}Gbit"
    return short if parse_rate(short) == bytes_per_s else f"{bytes_per_s!r}B/s"


def _seconds(seconds: float) -> str:
    """A time that reads back as exactly this one."""
    short = f"{seconds * 1e6:g}us"
    return short if parse_seconds(short) == seconds else f"{seconds!r}s"
