"""Markdown tables of what `make gpu` has recorded.

python tools/gpu/tables.py [FOLDER]           docs/data/gpu by default
"""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
HARDWARE = ("what", "card", "driver", "cuda", "nccl", "torch")
KIB, GBIT = 1024, 1.25e8

Row = dict[str, Any]


def main(folder: Path) -> str:
    """All tables that there are records for, with a line on what they were measured with."""
    sections = [(title, table(_read(folder / f"{file}.jsonl"))) for title, file, table in TABLES]
    rows = [row for _, file, _ in TABLES for row in _read(folder / f"{file}.jsonl") if "card" in row]
    on = dict.fromkeys(", ".join(f"{key} {row[key]}" for key in HARDWARE if key in row) for row in rows)
    shared = max((row["ranks_on_card"] for row in rows), default=0)
    head = [*on, f"Up to {shared} ranks share the one card."]
    return "\n\n".join([*head, *(f"## {title}\n\n{table}" for title, table in sections if table)]) + "\n"


def profiles(rows: Sequence[Row]) -> str:
    """Forward and backward time of every model."""
    body = []
    for row in rows:
        if "error" in row:
            body.append([row["model"], row["dtype"], row["error"], "", "", "", ""])
            continue
        unlike = "yes" if not row["unlike_the_table"] else f"no: {row['unlike_the_table'][0]}"
        times = [_ms(row["forward_s"]), _ms(row["backward_s"]), f"{100 * row['spread']:.0f} %"]
        body.append([row["model"], row["dtype"], str(row["batch"]), *times, unlike])
    return _markdown(["model", "dtype", "batch", "forward, ms", "backward, ms", "spread", "as in the table"], body)


def links(rows: Sequence[Row]) -> str:
    """The link of every rate that is furthest from what it should carry."""
    body = []
    for row in rows:
        worst = min(row["links"], key=lambda link: link["share"])
        least, carried = f"{100 * worst['share']:.1f} %", _gbit(worst["goodput_bytes_per_s"])
        varies = max(link["variation"] for link in row["links"])
        body.append([f"{row['gbit']:g}", str(len(row["links"])), carried, least, f"{100 * varies:.1f} %"])
    head = ["link, Gbit/s", "directions", "least goodput, Gbit/s", "of what TCP can", "largest variation"]
    return _markdown(head, body)


def blocks(rows: Sequence[Row]) -> str:
    """What an all-reduce takes, and the line through all sizes."""
    by: dict[tuple[str, int, float], list[Row]] = defaultdict(list)
    for row in rows:
        by[row.get("by", "PyTorch"), row["ranks"], row["rate"]].append(row)
    sizes = sorted({row["nbytes"] for row in rows if "nbytes" in row})
    body = []
    for (who, ranks, rate), group in sorted(by.items()):
        times = {
            row["nbytes"]: f"{_ms(row['block_s'])} ({_gbit(row['busbw_bytes_per_s'])})"
            for row in group
            if "nbytes" in row
        }
        fit = next((row for row in group if row.get("fit")), {})
        line = (
            [f"{1e3 * fit['start_s']:.3f}", f"{1e3 * 2**20 * fit['s_per_byte']:.3f}"]
            if "start_s" in fit
            else ["–", "–"]
        )
        body.append([who, str(ranks), _gbit(rate), *(times.get(size, "–") for size in sizes), *line])
    heads = [f"{size // KIB} KiB" for size in sizes]
    return _markdown(["by", "ranks", "link, Gbit/s", *heads, "start, ms", "ms per MiB"], body)


def parity(rows: Sequence[Row]) -> str:
    """How far parameters are apart."""
    body = [
        [str(row["ranks"]), row["model"], row["optimizer"], row["compared"], str(row["steps"]),
         f"{row['largest_difference']:.3g}", f"{row['largest_parameter']:.3g}"]
        for row in rows
    ]  # fmt: skip
    head = ["ranks", "model", "optimizer", "beside DDP", "steps", "largest difference", "largest parameter"]
    return _markdown(head, body)


def waits(rows: Sequence[Row]) -> str:
    """Calls in which the host waits for the GPU, in so many steps."""
    body = [
        [row["model"], row["arm"], str(row["steps"]),
         ", ".join(f"{count} {name}" for name, count in row["waiting_calls"].items()) or "none"]
        for row in rows
    ]  # fmt: skip
    return _markdown(["model", "method", "steps", "calls that wait"], body)


def steps(rows: Sequence[Row]) -> str:
    """Median step of every arm, over its repeats, beside compute and the wire."""
    by: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        by[row["model"], row["batch"]].append(row)
    body = []
    for (model, batch), group in by.items():
        taken: dict[str, list[float]] = defaultdict(list)
        wires = {row.get("arm", ""): row.get("wire_dtype") for row in group}
        for row in group:
            taken[row.get("arm", "")] += row.get("steps_s", [])
        medians = {arm: statistics.median(times) for arm, times in taken.items() if times}
        first, compute = group[0], medians.get("compute")
        what = f"{model}, batch {batch}, {_gbit(first['rate'])} Gbit/s"
        ratio = f"{first['wire_s'] / compute:.2f}" if compute else "–"
        for arm, step_s in medians.items():
            alike = [s for other, s in medians.items() if other.startswith("DDP") and wires[other] == wires[arm]]
            speed = f"{min(alike) / step_s:.2f}x" if alike and arm != "compute" else ""
            body.append([what, ratio, arm, str(len(taken[arm])), _ms(step_s), speed])
            what = ratio = ""
        body += [[what, "", f"{arm}: {row['why']}", "0", "–", ""] for row in group for arm in row.get("left_out", [])]
    return _markdown(["job", "wire ÷ compute", "arm", "steps", "median, ms", "over DDP's best"], body)


def verdicts(rows: Sequence[Row]) -> str:
    """What doctor expected of each job, and what was measured."""
    body = []
    for row in rows:
        if (doctor := row.get("doctor")) is None:
            continue
        what = f"{row['model']}, batch {row['batch']}, {_gbit(row['rate'])} Gbit/s"
        gains = (doctor["expected_gain"], doctor["measured_gain"])
        shown = ["–" if gain is None else f"{100 * gain:.0f} %" for gain in gains]
        right = {None: "–", True: "yes", False: "no"}[doctor["right"]]
        body.append([what, doctor["verdict"], *shown, doctor["method"] or "–", right])
    head = ["job", "doctor says", "gain it expects", "gain measured", "by", "right"]
    return _markdown(head, body)


def sections(rows: Sequence[Row]) -> str:
    """How long sections took, and what failed."""
    body = [[row["section"], f"{row['took_s']:.0f}", row["why"] if row["failed"] else "done"] for row in rows]
    return _markdown(["section", "took, s", "outcome"], body)


TABLES = (
    ("Profiles", "profiles", profiles),
    ("Links", "links", links),
    ("All-reduce: ms per block (busbw, Gbit/s)", "blocks", blocks),
    ("Parity", "parity", parity),
    ("Waits", "waits", waits),
    ("Steps", "steps", steps),
    ("Doctor", "steps", verdicts),
    ("Sections", "sections", sections),
)


def _read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in body]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + " --- |" * len(head), *lines]) if lines else ""


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def _gbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s / GBIT:.3g}"


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "data" / "gpu"))
