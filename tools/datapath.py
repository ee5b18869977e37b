"""Congestion controls with real packets: docs/data/congestion/datapath.json, row by row, and its table.

    python tools/datapath.py --minutes 9    # what matters most comes first; again for what is left; root
    python tools/datapath.py --table        # the table of docs/congestion.md again, measuring nothing

A row takes a minute: three runs of 16 s. It stays as it is once it was measured on an idle machine.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from judge_tables import fill, markdown

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "data" / "congestion" / "datapath.json"
LINK = {"rate": "50Mbit", "delay": "25ms", "loss": "1%", "queue": 500, "seconds": "16s", "seed": 0, "seeds": 3}
SPEED, EVEN, CALM, LOSS = (0.8, 0.1, 0.1), (0.4, 0.5, 0.1), (0.1, 0.8, 0.1), (0.1, 0.1, 0.8)
#: Control and objective, and its name; in the order of the table.
NAMES: dict[tuple[str, tuple[float, ...]], str] = {
    ("cubic", ()): "CUBIC",
    ("vegas", ()): "Vegas",
    ("bbr", ()): "BBR",
    ("copa", ()): "Copa",
    ("allegro", ()): "Allegro",
    ("vivace", ()): "Vivace",
    ("aurora", ()): "Aurora (ours)",
    ("orca-style", ()): "Orca-style",
    ("mocc", SPEED): "MOCC ⟨0.8, 0.1, 0.1⟩",
    ("mocc", CALM): "MOCC ⟨0.1, 0.8, 0.1⟩",
    ("mocc", LOSS): "MOCC ⟨0.1, 0.1, 0.8⟩",
    ("kernel-cubic", ()): "the kernel's CUBIC",
    ("kernel-bbr", ()): "the kernel's BBR",
    ("kernel-mocc", SPEED): "MOCC ⟨0.8, 0.1, 0.1⟩ in the kernel",
    ("kernel-mocc", CALM): "MOCC ⟨0.1, 0.8, 0.1⟩ in the kernel",
}
FIRST = (("mocc", SPEED), ("cubic", ()), ("kernel-cubic", ()), ("kernel-mocc", SPEED), ("mocc", CALM))
IDLE = 0.15  # cores that other processes use at most
ROW_S = 75.0  # that a row takes, with what it waits for
Row = dict[str, Any]


def main() -> None:
    """Measure what is not measured yet, write it, and fill in the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="begin no row that would end later (default: 20)")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    given = parser.parse_args()
    until_s = time.monotonic() + 60 * given.minutes
    rows = {key(row): row for row in json.loads(OUT.read_text(encoding="utf-8"))["runs"]}
    for which in () if given.table else (*FIRST, *(one for one in NAMES if one not in FIRST)):
        before = rows.get(which)
        if before is not None and before["measured"]["others_cores"] <= IDLE:
            continue
        if time.monotonic() + ROW_S > until_s:
            sys.stdout.write(f"no time left for {NAMES[which]}: run this again\n")
            break
        rows[which] = bench(*which)
        measured = rows[which]["measured"]
        sys.stdout.write(
            f"{NAMES[which]}: {100 * measured['utilisation']:.1f} % of the link; others used "
            f"{measured['others_cores']:.2f} cores\n"
        )
        runs = [rows[one] for one in NAMES if one in rows]
        told = {"what": "simulated and measured"} | LINK | {"runs": runs}
        OUT.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    fill(ROOT / "docs" / "congestion.md", {"datapath": table([rows[one] for one in NAMES if one in rows])})


def key(row: Row) -> tuple[str, tuple[float, ...]]:
    """Control and objective of a row."""
    return row["algorithm"], tuple(row.get("objective", ()))


def bench(name: str, wish: tuple[float, ...]) -> Row:
    """Measure a row."""
    words = [sys.executable, "-m", "autobyte", "congestion", "bench", "--json", "--algorithms", name]
    for option, value in LINK.items():
        words += [f"--{option}", str(value)]
    words += ["--objective", ",".join(map(str, wish))] if wish else []
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    row: Row = json.loads(done.stdout)["runs"][0]
    return row


def table(rows: list[Row]) -> str:
    """Simulated beside measured, as Markdown."""
    head = [
        "",
        "utilisation, sim. (%)",
        "measured (%)",
        "round trip, sim. (ms)",
        "measured (ms)",
        "99 %, sim. (ms)",
        "99 %, measured (ms)",
        "loss, measured (%)",
        "CPU per Gbit (s)",
        "others' cores",
    ]
    body = []
    for row in rows:
        measured, cells = row["measured"], [NAMES[key(row)]]
        for name, scale in (("utilisation", 100), ("round_trip_s", 1e3)):
            cells += [_with_error(half, name, scale) for half in (row, measured)]
        cells += [f"{1e3 * half['p99_s']:.0f}" if "p99_s" in half else "–" for half in (row, measured)]
        cells += [_with_error(measured, "loss", 100), f"{measured['cpu_s_per_gbit']:.1f}"]
        body.append([*cells, f"{measured['others_cores']:.1f}"])
    return markdown(head, body)


def _with_error(half: Row, name: str, scale: float) -> str:
    if name not in half:
        return "–"
    return f"{scale * half[name]:.1f} ± {scale * half[f'{name}_error']:.1f}"


if __name__ == "__main__":
    main()
