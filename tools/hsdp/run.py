"""Hybrid sharding on two hosts: how replicas' gradients are averaged over the slow link between them.

    python tools/hsdp/run.py --real-time    # docs/data/hsdp and the note's table; 4 minutes, root and an idle machine
    python tools/hsdp/run.py --table        # the note's table again, from what was measured
    python tools/hsdp/run.py --simulate     # simulates the same, for BERT-large and GPT-2 small

Two emulated hosts of two ranks each: a replica is a host, and is sharded over its two ranks. Their traffic stays on
the host, and only sums between replicas use the shaped link. Compute is emulated by sleeping. A step is the slowest
rank's; the table has medians.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rank import ARMS, simulated

from autobyte.bench.priority import undisturbed
from autobyte.cli.console import progress
from autobyte.testbed import Testbed
from autobyte.testbed.hosts import PAYLOAD
from autobyte.testbed.load import MOST_CORES, OtherLoad

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs"
OUT, NOTE = DOCS / "data" / "hsdp" / "steps.json", DOCS / "research" / "2026-11-27-hsdp.md"
TABLE = re.compile(r"(<!-- table hsdp -->\n).*?(<!-- end -->)", re.DOTALL)
RATE = 125e6 / 8  # of the link, nominal (bytes/s)
SETTINGS = {
    "model": "bert-large",
    "layers_per_unit": 2,
    "payload": RATE * PAYLOAD,
    "nbytes": 12_000_000,  # of all gradients
    "replicas": 2,
    "shards": 2,
    "ratios": [0.5, 1.0, 2.0],  # communication ÷ compute
    "partition_bytes": 131_072,
    "credit_bytes": 262_144,
    "warmup": 2,
    "steps": 6,
}
SIMULATED = {"bert-large": 2, "gpt2": 1}  # layers per unit
LIMIT_S = 600.0


def main() -> None:
    """Measure, write, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--real-time", action="store_true", help="ranks get real-time priority")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--simulate", action="store_true", help="in virtual time, and write nothing")
    given = parser.parse_args()
    if given.simulate:
        for model, layers in SIMULATED.items():
            settings = SETTINGS | {"model": model, "layers_per_unit": layers}
            sys.stdout.write(f"{model}, simulated\n\n{table(settings | {'rows': simulated(settings)})}\n\n")
        return
    if not given.table:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(measure(real_time=given.real_time), indent=1) + "\n", encoding="utf-8")
    measured = json.loads(given.out.read_text(encoding="utf-8"))
    made = f"{table(measured)}\n\n{conditions(measured)}\n"
    sys.stdout.write(made)
    if given.out == OUT:
        NOTE.write_text(TABLE.sub(rf"\1\n{made}\2", NOTE.read_text(encoding="utf-8")), encoding="utf-8")


def measure(*, real_time: bool) -> dict[str, Any]:
    """Run all arms on two hosts; what was set, the machine's other load, and a row for every arm."""
    with TemporaryDirectory() as folder, progress("hybrid sharding") as shown:
        spec, out = Path(folder) / "spec.json", Path(folder) / "rows.jsonl"
        spec.write_text(json.dumps(SETTINGS | {"out": str(out)}), encoding="utf-8")
        out.touch()
        total = len(ARMS) * len(SETTINGS["ratios"])
        command = [sys.executable, str(HERE / "rank.py"), str(spec)]
        with (
            undisturbed() if real_time else nullcontext(False) as raised,
            OtherLoad() as others,
            Testbed(SETTINGS["replicas"], rate=RATE) as testbed,
            testbed.start(command, per_host=SETTINGS["shards"]) as launch,
        ):
            launch.wait(timeout_s=LIMIT_S, meanwhile=lambda: shown(len(out.read_text().splitlines()), total, ""))
        rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    facts = {"what": "emulated", "torch": torch.__version__, "rate": RATE, "real_time": raised}
    return facts | {"other_cores": round(others.cores, 2), **SETTINGS, "rows": rows}


def table(measured: dict[str, Any]) -> str:
    """Step times in ms, a row for each arm, as Markdown; in brackets what is simulated."""
    ratios, rows = measured["ratios"], measured["rows"]
    lines = [["communication ÷ compute", *(f"{ratio:g}" for ratio in ratios)], ["---"] * (1 + len(ratios))]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        lines.append([arm, *(_cell(row for row in rows if (row["arm"], row["ratio"]) == (arm, r)) for r in ratios)])
    for what, name in (("compute_s", "compute"), ("wire_s", "communication"), ("bound_s", "bound")):
        found = [next(row[what] for row in reversed(rows) if row["ratio"] == ratio) for ratio in ratios]
        lines.append([name, *(f"{1e3 * value:.0f}" for value in found)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def conditions(measured: dict[str, Any]) -> str:
    """How busy the machine was, and whether all arms trained the same."""
    busy = "" if measured["other_cores"] <= MOST_CORES else ", **too many: measure again**"
    unequal = [f"{row['arm']} at {row['ratio']:g}" for row in measured["rows"] if row.get("equal") is False]
    priority = "with" if measured["real_time"] else "without"
    return (
        f"Ranks ran {priority} real-time priority, and others used {measured['other_cores']:g} cores{busy}.\n"
        f"Arms whose parameters differ from FSDP2's: {', '.join(unequal) or 'none'}."
    )


def _cell(rows: Iterable[dict[str, Any]]) -> str:
    row = next(iter(rows))
    simulated = f" ({1e3 * row['simulated_s']:.0f})" if "simulated_s" in row else ""
    return f"{1e3 * statistics.median(row['steps_s']):.0f}{simulated}"


if __name__ == "__main__":
    main()
