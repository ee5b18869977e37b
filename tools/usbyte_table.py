"""The tables of docs/usbyte.md about what each extension is worth. Simulated; a few seconds.

python tools/usbyte_table.py
"""

import sys
from dataclasses import replace
from pathlib import Path

from judge_tables import fill, markdown

from autobyte.bound import bound_s
from autobyte.config import Config
from autobyte.scheduler.policies import make_plan
from autobyte.scheduler.policies.ddp import BUCKETS
from autobyte.simulator.landscape import survey
from autobyte.simulator.steady import steady_s
from autobyte.units import KIB

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "paper"))

import jobs  # noqa: E402

MODELS = {"vgg16": "VGG16", "resnet50": "ResNet50", "densenet121": "DenseNet121", "gpt2": "GPT-2"}
MODELS["bert-large"] = "BERT-large"
ARCHITECTURES = {"allreduce": "ring", "ps": "servers"}
GBIT, FREE, ONE = 10, 1 << 34, 1  # a window as good as none, and one message at a time
UNITS = [256 * KIB << power for power in range(10)]  # 256 KiB … 128 MiB


def published(window: int) -> list[Config]:
    """The paper's algorithms, whose unit is tuned."""
    return [Config(unit, window, "usbyte", {"published": 1}) for unit in UNITS]


def ours(window: int, *, fusion: int) -> list[Config]:
    """Our search."""
    return [Config(FREE, window, "usbyte", {"fusion": fusion})]


def columns(window: int) -> dict[str, list[Config]]:
    """Configs of which the best counts."""
    return {
        "DDP, best bucket": list(BUCKETS),
        "published, one at a time": published(ONE),
        "published, window": published(window),
        "ours without fusion, window": ours(window, fusion=0),
        "ours with fusion, one at a time": ours(ONE, fusion=1),
        "ours with fusion, window": ours(window, fusion=1),
    }


def extensions() -> str:
    """Step over bound of every model and architecture under the best of each column's configs."""
    body: list[list[str]] = []
    for architecture, name in ARCHITECTURES.items():
        by_column = columns(KIB if architecture == "ps" else FREE)
        for model, title in MODELS.items():
            job = jobs.job(model, GBIT, architecture)
            over = [survey(job, configs).best_s / bound_s(job) for configs in by_column.values()]
            body.append([f"{title}, {name}", *(f"{ratio:.3f}" for ratio in over)])
    return markdown(["model and architecture", *by_column], body)


def drift() -> str:
    """Step over bound where links or compute have changed: under the plan from before, and under a new one."""
    body: list[list[str]] = []
    for model, title in MODELS.items():
        before = jobs.job(model, GBIT, "allreduce")
        old = make_plan(before, ours(FREE, fusion=1)[0])
        cells = []
        slower = replace(before.cluster, slowdown=(1.5,) * before.cluster.workers)
        for after in (*(jobs.job(model, gbit, "allreduce") for gbit in (3, 25)), replace(before, cluster=slower)):
            new = make_plan(after, ours(FREE, fusion=1)[0])
            stayed, replanned = (steady_s(plan) / bound_s(after) for plan in (replace(old, job=after), new))
            cells.append(f"{stayed:.3f} → {replanned:.3f}")
        body.append([title, *cells])
    return markdown(["model", "link of 3 Gbit/s", "link of 25 Gbit/s", "compute 1.5 times as long"], body)


if __name__ == "__main__":
    fill(ROOT / "docs" / "usbyte.md", {"extensions": extensions(), "drift": drift()})
