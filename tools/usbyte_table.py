"""The tables of docs/usbyte.md about what each extension is worth. Simulated; a few seconds.

python tools/usbyte_table.py
"""

import sys
from pathlib import Path

from judge_tables import fill, markdown

from autobyte.bound import bound_s
from autobyte.config import Config
from autobyte.scheduler.policies.ddp import BUCKETS
from autobyte.simulator.landscape import survey
from autobyte.units import KIB

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "paper"))

import jobs  # noqa: E402
import usbyte_drift  # noqa: E402

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
    body, heads = [], ["model"]
    for model, title in MODELS.items():
        rows = list(usbyte_drift.judged(model))
        heads[1:] = [row["change"] for row in rows]
        body.append([title, *(f"{row['stale_over_bound']:.3f} → {row['new_over_bound']:.3f}" for row in rows)])
    return markdown(heads, body)


if __name__ == "__main__":
    fill(ROOT / "docs" / "usbyte.md", {"extensions": extensions(), "drift": drift()})
