"""What notebooks and interpreters show of objects: short, and safe in HTML."""

from xml.etree import ElementTree as ET

import numpy as np
import pytest

import autobyte
from autobyte import Cluster, Config, Job, Model
from autobyte.models import load
from autobyte.notebooks import html_table
from autobyte.simulator.world import World

JOB = Job(load("resnet50"), Cluster.uniform(1024, 1.25e9))
RESULT = autobyte.simulate(JOB, Config(4 << 20, 16 << 20), iterations=2)


def test_what_users_hold_is_short() -> None:
    window = World(JOB).measure(Config(4 << 20, 16 << 20), iterations=3)
    plan = autobyte.make_plan(JOB, Config(4 << 20, 16 << 20))
    shown = [JOB, JOB.model, JOB.cluster, JOB.gradients, plan, plan.tiling, RESULT, window, window.stats]
    assert [repr(one) for one in shown if len(repr(one)) > 220 or "\n" in repr(one)] == []
    assert repr(JOB.cluster) == "Cluster(1024 workers, allreduce, 10 Gbit/s)"
    assert repr(JOB.model).startswith("Model('resnet50', ")
    assert f"{JOB.model.parameters:,} parameters" in repr(JOB.model)


def test_links_that_differ_are_a_range() -> None:
    assert repr(Cluster(2, 0, (1.25e8, 1.25e9), (1.25e9,))) == "Cluster(2 workers, allreduce, 1 Gbit/s to 10 Gbit/s)"
    assert repr(Cluster.uniform(2, float("inf"))).startswith("Cluster(2 workers, allreduce, inf")


@pytest.mark.parametrize("shown", [JOB, RESULT], ids=["job", "simulation"])
def test_notebooks_show_a_table(shown: Job) -> None:
    table = ET.fromstring(shown._repr_html_())
    assert table.tag == "table"
    assert len(table.findall("tbody/tr")) >= 4


def test_names_cannot_break_the_table() -> None:
    model = Model.build("<script>&", [("l", [("w", 4)], 1e-3, 1e-3)], batch_size=1)
    caption = ET.fromstring(Job(model, Cluster.uniform(2, 1e9))._repr_html_()).find("caption")
    assert caption is not None and caption.text == "<script>&"
    cells = ET.fromstring(html_table("t", [("a<b", "1 & 2")], columns=("", "n>1")))
    assert ["".join(cell.itertext()) for cell in cells.iter() if cell.tag in ("th", "td")] == [
        "",
        "n>1",
        "a<b",
        "1 & 2",
    ]


def test_simulate_takes_a_job_and_a_config_or_a_plan() -> None:
    plan = autobyte.make_plan(JOB, Config(4 << 20, 16 << 20))
    np.testing.assert_array_equal(RESULT.step_s, autobyte.simulate(plan, iterations=2).step_s)
    for wrong in ((JOB,), (plan, Config(4 << 20, 16 << 20))):
        with pytest.raises(autobyte.AutoByteError, match=r"^say simulate\(job, config\), or simulate\(plan\)$"):
            autobyte.simulate(*wrong)
