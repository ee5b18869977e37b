"""The tables of docs/benchmarks.md about other frameworks on shaped links, from docs/data/frontends.

`make keras` and the like keep there what `autobyte bench --frontend` measures.

python tools/frontend_tables.py
"""

import json
from pathlib import Path
from typing import Any

from judge_tables import fill, markdown
from shaped_tables import NAMES

from autobyte.bench.bench import label

ROOT = Path(__file__).parent.parent
DATA = ROOT / "docs" / "data" / "frontends"
#: What a way is to reach: a gain over one of the framework's own ways, or at most so many times the bound.
GAINS = {("keras-tf", "autobyte"): {"after": 1.15, "strategy": 1.1}, ("mxnet", "autobyte"): {"dist_sync": 1.2}}
BOUNDS = {("keras-tf", "crossing"): 1.15, ("mxnet", "autobyte"): 1.25}
UNTARGETED = {("mxnet", "resnet50")}
FRONTS = {"keras-tf": "Keras on TensorFlow", "mxnet": "MXNet's Gluon"} | dict.fromkeys(
    ("torch", "byteps", "horovod"), "PyTorch"
)


def front_ends(data: Path) -> str:
    """Every way of every front end: step, bound, and how much faster AutoByte is than each of the framework's own."""
    outcomes = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(data.glob("*.json"))]
    body = [_line(outcome, row) for outcome in outcomes for row in outcome["rows"]]
    heads = [
        "front end",
        "model",
        "hosts",
        "way",
        "config",
        "step",
        "exposed",
        "step / bound",
        "gain over the framework's own",
        "targets",
    ]
    doubts = [f"{_title(outcome)}, {outcome['warning']}" for outcome in outcomes if outcome["warning"]]
    return markdown(heads, body) + f"\nWarnings of the launches: {'; '.join(doubts) or 'none'}."


def _line(outcome: dict[str, Any], row: dict[str, Any]) -> list[str]:
    settings = outcome["settings"]
    way = row["title"]
    if not row["own"]:
        way += f", engine `{outcome['engine']}`, {settings['windows']} windows"
    step = f"{1e3 * row['step_s']:.0f} ms"
    if settings["repeats"] > 1:
        step += f" ({1e3 * row['step_low_s']:.0f} … {1e3 * row['step_high_s']:.0f})"
    own = [each for each in outcome["rows"] if each["own"]]
    gains = [f"{each['step_s'] / row['step_s']:.2f}x {each['title']}" for each in own]
    cell = outcome["cell"]
    return [
        FRONTS[outcome["frontend"]],
        NAMES[cell["model"]],
        f"{cell['hosts']}, {cell['rate'] * 8e-9:g} Gbit/s",
        way,
        "" if row["config"] is None else label(row["config"]),
        step,
        "" if row.get("exposed_s") is None else f"{1e3 * row['exposed_s']:.0f} ms",
        f"{row['over_bound']:.2f}x",
        "" if row["own"] else "; ".join(gains),
        _reached(outcome, row),
    ]


def _reached(outcome: dict[str, Any], row: dict[str, Any]) -> str:
    """Which targets a way has, and whether it reaches them."""
    place = outcome["frontend"], row["way"]
    if (outcome["frontend"], outcome["cell"]["model"]) in UNTARGETED:
        return ""
    step_s = {each["way"]: each["step_s"] for each in outcome["rows"]}
    found = [(f"≥ {least}x", step_s[own] / row["step_s"] >= least) for own, least in GAINS.get(place, {}).items()]
    if place in BOUNDS:
        found.append((f"≤ {BOUNDS[place]} x bound", row["over_bound"] <= BOUNDS[place]))
    return "; ".join(f"{target} {'reached' if reached else 'MISSED'}" for target, reached in found)


def _title(outcome: dict[str, Any]) -> str:
    return f"{FRONTS[outcome['frontend']]}, {NAMES[outcome['cell']['model']]}, `{outcome['engine']}`"


if __name__ == "__main__":
    fill(ROOT / "docs" / "benchmarks.md", {"frontends": front_ends(DATA)})
