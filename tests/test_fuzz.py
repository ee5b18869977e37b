"""Whatever a file or an option holds, it is read, or refused in one line: never a traceback."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from autobyte import Cluster, Config, Job, make_plan, simulate
from autobyte.errors import AutoByteError
from autobyte.exchange.tuning.kept import Kept
from autobyte.models.pipedream import read_pipedream
from autobyte.models.profile import Profile
from autobyte.scenario import Scenario
from autobyte.units import parse_bytes, parse_credit, parse_rate, parse_seconds

EXAMPLES = int(os.environ.get("AUTOBYTE_PROGRAMS", "200"))  # by night, thousands
LONG = "9" * 5000
few = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)

sizes = st.one_of(
    st.text(max_size=12),
    st.builds(
        "{}{}".format, st.floats() | st.integers(), st.sampled_from(["", "x", "KB", "MiB", "Gbit", "ms", "%", "h"])
    ),
)


@pytest.mark.parametrize("parse", [parse_bytes, parse_rate, parse_seconds, lambda text: parse_credit(text, 1 << 40)])
@given(text=sizes)
@example("1e308x")
@example("1e308h")
@example(LONG)
@example("٣ MiB")
@few
def test_units(parse: Callable[[str], object], text: str) -> None:
    refused(lambda: parse(text))


LINES = {
    "scenario": [
        "[[change]]",
        "at = 20",
        'bandwidth = "3Gbit"',
        "worker = 2",
        "schema = 1",
        "every = 3",
        'up = "0%"',
    ],
    "pipedream": [
        "node1 -- Input0 -- forward_compute_time=0.0, backward_compute_time=0.0, "
        "activation_size=0.0, parameter_size=0.0",
        "node2 -- Linear(in_features=4, out_features=2, bias=True) -- forward_compute_time=1.0, "
        "backward_compute_time=1.0, activation_size=8.0, parameter_size=40.0",
        "\tnode1 -- node2",
        "node2 -- Conv2d(3, 64, kernel_size=(3, 3), groups=0) -- forward_compute_time=1e308, "
        "backward_compute_time=[1e308; 1e308], activation_size=602112.0, parameter_size=4e300",
        f"node{LONG} -- Linear(in_features={LONG}, out_features=2) -- forward_compute_time=1.0",
    ],
    "profile": ['{"kind": "autobyte-profile", "schema": 1, "layers": [', "]}", '"name": "m",', LONG],
    "kept": [
        *("schema = 3", "[job]", 'model = "N"', "workers = 2", "[link]", "gigabit_per_s = 0", "[config]", "[found]"),
        *("partition_bytes = 4096", "credit_bytes = 4096", "policy = 0x10", "knobs = { fusion = True }"),
    ],
}
READERS: dict[str, Callable[[Path], object]] = {
    "scenario": Scenario.load,
    "pipedream": read_pipedream,
    "profile": Profile.load,
    "kept": Kept.read,
}


numbers = st.one_of(
    st.integers(), st.floats(), st.integers(0, 1000).map(lambda digits: 10**digits), st.booleans(), st.none()
)


@given(numbers, numbers, numbers, numbers)
@example(10**400, 0.0, 0.0, 1)
@example(1, 1e308, 1e308, 1)
@few
def test_numbers_of_profiles(tmp_path: Path, batch: Any, forward_s: Any, backward_s: Any, numel: Any) -> None:
    layer = {
        "name": "l",
        "forward_s": forward_s,
        "backward_s": backward_s,
        "tensors": [{"name": "w", "numel": numel}],
    }
    profile = {"kind": "autobyte-profile", "schema": 1, "name": "m", "provenance": {}, "batch_size": batch}
    path = tmp_path / "file"
    path.write_text(json.dumps(profile | {"layers": [layer, layer]}))
    whole = Config(1 << 60, 1 << 60)
    refused(lambda: simulate(make_plan(Job(Profile.load(path).model(), Cluster(2)), whole)).step_s)


@pytest.mark.parametrize("what", READERS)
@given(data=st.data())
@few
def test_files(what: str, data: st.DataObject, tmp_path: Path) -> None:
    line = st.sampled_from([*LINES[what], f"x = {LONG}", "x = " + "[" * 3000]) | st.text(max_size=20)
    path = tmp_path / "file"
    content = data.draw(st.lists(line, max_size=12).map("\n".join).map(encoded) | st.binary(max_size=40))
    path.write_bytes(content)
    refused(lambda: READERS[what](path))


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def refused(read: Callable[[], object]) -> None:
    try:
        read()
    except AutoByteError as error:
        assert str(error)
